// How fast the ranks of a job reach each other: inside an island, over the PCIe links of a host,
// over the network. GB/s in one direction for each GPU (rank, on hosts without); empty where no
// source tells.
#pragma once

#include <optional>
#include <vector>

#include "mesh/rank_groups.hpp"

namespace atoll_v1::atoll {

class LinkRates {
 public:
  // All are kept by reference.
  LinkRates(const Topology& topology, const MeshSites& sites, const RankGroups& groups);

  // Of a near group, by its number.
  std::optional<double> inside(int near);
  // Of a host, by its number in the sites: the slowest link of a GPU that a rank uses.
  std::optional<double> pcie(int host);
  // Of a host: what the NICs that its ranks send through carry together, for each of them.
  std::optional<double> network(int host);

 private:
  struct HostRates {
    bool is_measured = false;
    std::optional<double> pcie, network;
  };
  void collect_hosts();
  HostRates& at(int host);
  std::optional<double> measure_pcie(int host) const;
  std::optional<double> measure_network(int host) const;

  const Topology& topology_;
  const MeshSites& sites_;
  const RankGroups& groups_;
  // By host. The vectors are empty until something is asked of a host.
  std::vector<HostRates> rates_;
  std::vector<const TopologyHost*> hosts_;      // null: not listed
  std::vector<std::vector<std::size_t>> gpus_;  // those that ranks use, once each
  std::vector<std::vector<std::size_t>> nics_;
  std::vector<int> users_;                     // how many ranks
  std::vector<Affinity> affinity_;             // by GPU
  std::vector<std::optional<double>> usable_;  // by NIC
};

// What a GPU's PCIe link carries at its full speed; empty when unknown, or below what a slot of a
// GPU gives: an idle link trains down, and virtual machines emulate slow ones.
std::optional<double> full_pcie_gbyte_s(const Facts& facts);

}  // namespace atoll_v1::atoll

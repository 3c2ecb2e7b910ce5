// Rates at which the ranks of a job reach each other: inside an island, over a host's PCIe links
// and over the network. Rates are in GB/s in one direction for each GPU, or for each rank on hosts
// without GPUs. A rate that no source provides is empty.
#pragma once

#include <optional>
#include <vector>

#include "mesh/mesh_sites.hpp"

namespace atoll_v1::atoll {

// The ranks of a job, located and grouped, with their rates.
class LinkRates {
 public:
  // Keeps a reference to the topology. Throws Error(invalid_argument) if the ranks cannot be
  // located.
  LinkRates(const Topology& of, const std::vector<RankSite>& ranks, const MeshPlanOptions& options);
  LinkRates(const LinkRates&) = delete;
  LinkRates& operator=(const LinkRates&) = delete;

  const Topology& topology;
  const MeshSites sites;
  const RankGroups groups;

  // Returns the rate inside a near group (an island or a host), given the index of the group.
  std::optional<double> intra(int near);
  // Returns the PCIe rate of a host: the rate of the slowest PCIe link among the GPUs that ranks
  // use. `host` indexes MeshSites::hosts.
  std::optional<double> pcie(int host);
  // Returns the network rate of a host for each GPU that ranks use, or for each rank on a host
  // without GPUs. These GPUs or ranks share the NICs in use equally.
  std::optional<double> network(int host);

 private:
  struct Host {
    const TopologyHost* listed = nullptr;  // the host in the topology; null if it is not listed
    std::vector<std::size_t> gpus = {};    // GPUs that ranks use, each once
    std::vector<std::size_t> nics = {};
    int users = 0;  // number of ranks on the host
    std::optional<double> pcie = {}, network = {};
  };
  void collect_hosts();
  Host& at(int host);
  std::optional<double> measure_pcie(const Host& host) const;
  // `affinity` has the NICs of each GPU, `usable` the bandwidth of each NIC.
  std::optional<double> measure_network(const Host& host, const std::vector<Affinity>& affinity,
                                        const std::vector<std::optional<double>>& usable) const;

  std::vector<Host> hosts_;  // each entry is filled by the first query about its host
};

// Bandwidth of a GPU's PCIe link at full speed. Empty when unknown, or when it is below that of any
// real GPU slot: an idle link trains down, and virtual machines emulate slow links.
std::optional<double> full_pcie_gbyte_s(const Facts& facts);

}  // namespace atoll_v1::atoll

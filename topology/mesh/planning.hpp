// The parts of mesh planning: the rates at which ranks reach each other, the modelled time of a
// step, the memory that a model needs, meshes over unequal islands, and the check of a mesh.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mesh/mesh_sites.hpp"

namespace atoll_v1::atoll {

// --- link_rates.cpp ---
//
// Rates at which the ranks of a job reach each other: inside an island, over a host's PCIe links
// and over the network. Rates are in GB/s in one direction for each GPU, or for each rank on hosts
// without GPUs. A rate that no source provides is empty.

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

// --- step_model.cpp ---

class StepModel {
 public:
  explicit StepModel(LinkRates& rates);

  // Returns the communication time of one step in seconds. `gbytes` is the size of the parameters
  // in the type that is sent.
  double seconds(const MeshPlan& mesh, double gbytes);
  // True if a shard group of the mesh crosses islands.
  bool crosses(const MeshPlan& mesh) const;
  // Returns the rate of a group whose ranks form a ring in the given order.
  GroupRate rate(const std::vector<int>& members);
  // Describes the rates: "450 GB/s a GPU inside an island, 45 GB/s (assumed) over PCIe, 50 GB/s
  // over the network"
  std::string rates_text() const;

 private:
  // The ranks of one communicating group that are in one wide group (the larger of island and
  // host).
  struct Part {
    int members = 0;
    int near = -1;
    bool is_split = false;  // true if the ranks are in several near groups
    GroupRate links{};      // rate of the slowest link of a rank, and latency of the hops
    GroupRate network{};    // rate of the NICs of all ranks together
  };
  double hop_us(int rank, bool leaves_near) const;
  void add(int rank, Part& part) const;

  const MeshSites& sites_;
  const RankGroups& groups_;
  // Rates in GB/s of each rank: inside each near group, and over PCIe and the network of each host.
  // A rate that no source provides is assumed.
  std::vector<GroupRate> intra_, pcie_, network_;
  std::vector<Part>
      parts_;  // one for each island, or for each host if hosts are larger; for rate()
};

// --- memory.cpp ---

struct MemoryNeed {
  double state = 0;      // bytes for the state of the whole model
  double gpu_gives = 0;  // bytes that the smallest GPU provides, without the reserve
  std::string product;   // text such as "70e9 parameters x 16 bytes = 1043 GiB"
  std::string gives;     // text such as "64 GiB a GPU (80 GiB less 20 %)"

  bool fits(double gpus) const { return gpus >= gpus_needed(); }
  double gpus_needed() const;
};

// Returns nothing if the options do not give the number of parameters. Throws
// Error(invalid_argument) for invalid options, and when neither the options nor the topology give
// the memory of a GPU.
std::optional<MemoryNeed> memory_need(const Topology& topology, const std::vector<RankSite>& ranks,
                                      const MeshSites& sites, const MeshPlanOptions& options);

// Throws Error(invalid_argument) with a text that states how much memory the model lacks.
[[noreturn]] void refuse_model(const MemoryNeed& need, const MeshSites& sites);

// --- uneven.cpp: meshes over unequal islands or hosts ---

struct MeshRequest {
  LinkRates& rates;
  const MeshPlanOptions& options;
  const std::optional<MemoryNeed>& need;
};

// Arranges all ranks in a mesh with a shard axis of length `shard`.
MeshPlan arrange(const RankGroups& groups, int shard, int tensor);

// Plans the members shape, order, left_out and why of a mesh, and adds the finding "mesh_uneven".
MeshPlan plan_uneven(const MeshRequest& request);

// --- mesh_check.cpp ---

// Returns a finding for each shard group and each tensor group that crosses islands.
std::vector<Finding> find_crossings(LinkRates& rates, const MeshPlan& plan);

// Throws Error(invalid_argument) unless the plan's order holds every rank once and fits its shape.
void check_order(const MeshPlan& plan, std::size_t size);

// Returns the largest shard axis that stays inside the near groups (islands or hosts).
int shard_in_islands(const RankGroups& groups, int tensor);

}  // namespace atoll_v1::atoll

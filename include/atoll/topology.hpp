// The machine as data: hosts, GPUs, NICs, links; islands (sets of GPUs joined by the fast fabric)
// and the mesh that suits them. Pure: no communication, no state. Bandwidths are GB/s = 1e9 bytes
// per second in one direction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {

enum class IslandState {
  known,
  none,
  unknown
};
std::string_view name(IslandState state) noexcept;

struct TopologyHost {
  std::string id;  // unique in the job (name, boot id, network namespace)
  std::string name;
  int packages = 0;
  int numa_nodes = 0;  // with cores; memory-only nodes are not counted
  int cores = 0;       // physical cores that the process which looked may use
  int threads = 0;     // hardware threads that the process which looked may use
  std::uint64_t memory_bytes = 0;
  int host_cores = 0;    // of the whole host, whoever may use them
  int host_threads = 0;  // of the whole host
  // What a source said about links between this host's GPUs. unknown: it could not see (an absent
  // matrix proves nothing); none: it looked and there are none; known: `links` is complete.
  IslandState gpu_links = IslandState::unknown;
};

struct TopologyGpu {
  std::string id;     // "HOST/gpuN"
  std::string host;   // TopologyHost::id
  std::string busid;  // "00000000:1b:00.0" in the form DDDD:BB:DD.F, lower case
  std::string uuid;
  std::string model;
  int index = -1;  // the number that NVML gives it; -1: unknown
  int numa = -1;   // -1: unknown
};

struct TopologyNic {
  std::string id;  // "HOST/mlx5_0"
  std::string host;
  std::string name;
  std::string busid;
  std::string adapter;  // system image GUID: ports of one adapter share it
  std::string layer;    // "infiniband", "ethernet", ""
  std::string state;    // "active", "down", ...; "" unknown
  std::optional<double> rate_gbit_s;
  std::string evidence;  // where the rate is from: "sysfs", ...; "" without a rate
  int numa = -1;
};

// A link joins two GPUs, or a GPU and a switch. Types "nvlink" and "xgmi" make islands, and an end
// of theirs that is no GPU is a switch. Other types ("nvlink_cpu", "pci") are carried and join
// nothing.
struct TopologyLink {
  std::string a, b;  // ids of the ends
  std::string type;
  int count = 1;                  // parallel links that make up this one
  std::optional<double> gbyte_s;  // of all `count` together
};

// Every GPU is in exactly one island. A host without GPUs is one island of its CPUs, with no GPU.
// state known: these GPUs are joined by `fabric`. none: a GPU that is known to have no link, alone.
// unknown: all GPUs of a host about whose links nothing is known.
struct Island {
  std::vector<std::string> gpus;
  std::vector<std::string> hosts;
  std::string fabric;  // "nvlink", "xgmi", "cpu"; "" unless known
  IslandState state = IslandState::unknown;
  bool uniform = true;                 // all pairs are joined, and all alike
  std::optional<double> pair_gbyte_s;  // the slowest pair; empty when a pair has no link of its own
  std::optional<double> gpu_gbyte_s;   // all links of a GPU together; the slowest GPU
};

class World;

struct Topology {
  std::vector<TopologyHost> hosts;
  std::vector<TopologyGpu> gpus;
  std::vector<TopologyNic> nics;
  std::vector<TopologyLink> links;

  // This host, live (hwloc). `host_id` names it; empty: its host name.
  static Topology discover_local(std::string_view host_id = {});
  // All hosts of the job, merged; the lowest rank of each host looks. Collective; every rank throws
  // when one of them fails. Defined in src/comm.
  static Topology discover(World& world);

  // A machine from a file, in any form that a source in topology/sources/ recognises.
  // Error(not_found | io | bad_data), which names the file.
  static Topology load(const std::string& path);

  // The JSON form, documented in topology/README.md. from_json throws Error(bad_data) with the byte
  // offset; `source` names the text in messages.
  std::string to_json() const;
  static Topology from_json(std::string_view text, std::string_view source);
};

// For people: hosts with their NUMA nodes, GPUs and NICs, then the islands.
std::string to_tree(const Topology& topology);
// For people: GPUs x GPUs, how each pair is joined, with a legend.
std::string to_matrix(const Topology& topology);

// Hosts, GPUs and NICs that occur in several parts (same id) are taken once, from the first.
Topology merge(const std::vector<Topology>& parts);

// In order of the hosts, then of the GPUs.
std::vector<Island> find_islands(const Topology& topology);

// Where a rank runs, as the planner sees it.
struct RankSite {
  std::string host;  // TopologyHost::id
  std::string gpu;   // TopologyGpu::id; empty for a rank without one
};

// The sites of ranks that run on `hosts`, one host id a rank: each gets the GPU of its host that
// has the number of the rank among the host's ranks, where the host has that many.
std::vector<RankSite> assign_gpus(const Topology& topology, const std::vector<std::string>& hosts);

// The sites that a launcher would give to `count` ranks: host by host, one a GPU; on machines
// without GPUs in equal blocks. 0: one rank a GPU. Error(invalid_argument) when there are more
// ranks than GPUs, and for 0 without GPUs.
std::vector<RankSite> fill_hosts(const Topology& topology, int count);

struct MeshPlan {
  int replicate = 1;
  int shard = 1;
  // Ranks in mesh order, shard innermost: the rank at (r, s) is order[r * shard + s].
  std::vector<int> order;
  std::string why;  // a sentence for people
  std::vector<std::string> findings;
};

struct MeshPlanOptions {
  int emulated_islands = 0;  // treat the ranks, in order, as this many equal islands; 0: off
};

// Shards over the larger of island and host, replicates across. A pure function of its arguments,
// so every rank gets the same answer, whatever order the launcher numbered the ranks in. All ranks
// are used: when islands hold unequal numbers of ranks the shard axis is their largest common
// divisor, and a finding says so. A host that the topology does not list counts as a host without
// GPUs. Error(invalid_argument) without ranks, for a GPU that the topology does not list, and when
// the emulated islands do not divide the ranks.
MeshPlan plan_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                   const MeshPlanOptions& options = {});

// Findings about a mesh that was made by hand: each shard group that crosses an island, with what
// it joins and over what. Error(invalid_argument) unless `plan.order` holds every rank once and
// fits the shape.
std::vector<std::string> check_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                                    const MeshPlan& plan, const MeshPlanOptions& options = {});

// Topology::to_json with a member `mesh`, which from_json ignores.
std::string to_json(const Topology& topology, const MeshPlan& plan);

}  // namespace atoll_v1::atoll

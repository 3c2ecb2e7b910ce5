// Which mesh suits a machine, and where the ranks of a job run. Pure functions over a Topology.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/finding.hpp"
#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// Where a rank runs, as the planner sees it.
struct RankSite {
  std::string host;            // TopologyHost::id
  std::string gpu;             // TopologyGpu::id; empty for a rank without one
  std::string partition = {};  // UUID of the MIG or CPX instance that it uses; "" the whole GPU
  std::vector<int> cpus = {};  // hardware threads that it may run on; empty: unknown
  int numa = -1;               // the NUMA node of those threads; -1: several or unknown
};

// What a rank's process says of itself.
struct RankEnvironment {
  std::string host;          // TopologyHost::id
  int local_rank = 0;        // among the ranks of its host
  std::string visible;       // CUDA_VISIBLE_DEVICES (ROCR_/HIP_VISIBLE_DEVICES), as it stands
  bool has_visible = false;  // set at all; set and empty hides every GPU
  std::vector<std::string> allowed_busids = {};  // GPUs that control groups leave; empty: all
  std::vector<int> cpus = {};
  int numa = -1;
};

// Which GPU each rank uses: its local rank counts into the GPUs that its environment leaves it
// (CUDA_VISIBLE_DEVICES by index, UUID or MIG UUID, in CUDA's PCI bus order; control groups). A
// rank that sees one GPU uses that one. Ranks beyond the number of GPUs have none.
std::vector<RankSite> resolve_ranks(const Topology& topology,
                                    const std::vector<RankEnvironment>& ranks);

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
  int inner = 1;  // GPUs of an island below the shard axis, for tensor parallelism
  // Ranks in mesh order, innermost last: the rank at (r, s, i) is
  // order[(r * shard + s) * inner + i].
  std::vector<int> order;
  std::vector<int> left_out;  // ranks that the job runs faster without
  std::string why;            // a sentence for people
  std::vector<Finding> findings;
};

struct MeshPlanOptions {
  int emulated_islands = 0;  // treat the ranks, in order, as this many equal islands; 0: off
  int inner = 1;
  // With both, the smallest neighbourhood (island, host, k islands) whose memory holds the state
  // of a full shard is taken.
  std::optional<double> params = {};            // parameters of the model
  std::optional<double> gpu_memory_bytes = {};  // of one GPU
  double state_bytes = 16;                      // per parameter: weights, gradients, optimizer
  double reserve = 0.20;                        // of the memory, for activations and buffers
};

// Shards over the larger of island and host, replicates across; with `params`, over the smallest
// candidate that holds the model. A pure function of its arguments, so every rank gets the same
// answer, whatever order the launcher numbered the ranks in. All ranks are used, unless islands
// are unequal and the modelled step is faster without some: then left_out names them and the
// finding says so, but `order` still uses all. A host that the topology does not list counts as a
// host without GPUs. Error(invalid_argument) without ranks, for a GPU that the topology does not
// list, when the emulated islands or `inner` do not divide the ranks, and when no candidate holds
// the model (the message names the memory missing).
MeshPlan plan_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                   const MeshPlanOptions& options = {});

// Findings about a mesh that was made by hand: each shard group that crosses an island, with what
// it joins, over what, and the bandwidth lost. Error(invalid_argument) unless `plan.order` holds
// every rank once and fits the shape.
std::vector<Finding> check_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                                const MeshPlan& plan, const MeshPlanOptions& options = {});

// What a group of ranks that communicate carries, by a model over the topology: the slowest part of
// a ring through the group, in the order given, and the latency of its hops.
struct GroupRate {
  // GB/s a rank, in one direction: n ranks gather B bytes in (n - 1) / n * B / gbyte_s. Bus
  // bandwidth in the words of nccl-tests. 0: unknown. Infinite for a group of one rank.
  double gbyte_s = 0;
  double latency_us = 0;    // of the smallest collective
  bool is_assumed = false;  // no source gives the rate of something that the group crosses
  bool is_known() const noexcept { return gbyte_s > 0; }
};
// Error(invalid_argument) as plan_mesh(), and for a rank in `group` that is not one.
GroupRate group_rate(const Topology& topology, const std::vector<RankSite>& ranks,
                     const std::vector<int>& group, const MeshPlanOptions& options = {});

// How many neighbours of a group share a host, where all hosts have as many of them and there are
// several of both; else 0. hosts: of the group's ranks, in their order.
int ranks_per_host(std::span<const int> hosts);

// Of such a group: of the ranks of one host among each other, and of those in the same place of
// every host while the other places do the same. The slowest; unknown for other groups.
struct LevelRates {
  GroupRate inside{}, across{};
};

// Of each axis the slowest of its groups, since all wait for that one; so the same on all ranks.
// `world` is all ranks, in mesh order.
struct MeshRates {
  GroupRate shard{}, replicate{}, world{};
  LevelRates shard_levels{}, replicate_levels{}, world_levels{};
};
// Error(invalid_argument) as check_mesh().
MeshRates mesh_rates(const Topology& topology, const std::vector<RankSite>& ranks,
                     const MeshPlan& plan, const MeshPlanOptions& options = {});

}  // namespace atoll_v1::atoll

// Chooses the mesh that suits a machine and finds where the ranks of a job run. Pure functions over
// a Topology.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "atoll/finding.hpp"
#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// The site of a rank: the host and the GPU that it runs on.
struct RankSite {
  std::string host;            // TopologyHost::id
  std::string gpu;             // TopologyGpu::id; empty for a rank without a GPU
  std::string partition = {};  // UUID of its MIG or CPX instance; "" if it uses the whole GPU
  std::vector<int> cpus = {};  // hardware threads that it may run on; empty if unknown
  int numa = -1;               // NUMA node of those threads; -1 if several or unknown
};

// What the process of a rank reports about itself.
struct RankEnvironment {
  std::string host;          // TopologyHost::id
  int local_rank = 0;        // number among the ranks of its host
  std::string visible;       // value of CUDA_VISIBLE_DEVICES (ROCR_ or HIP_VISIBLE_DEVICES)
  bool has_visible = false;  // whether that variable is set; set and empty hides every GPU
  std::vector<std::string> allowed_busids = {};  // GPUs that control groups allow; empty: all
  std::vector<int> cpus = {};                    // as RankSite::cpus
  int numa = -1;                                 // as RankSite::numa
};

// Finds the GPU of each rank. The local rank is an index into the GPUs that the environment leaves
// the rank: CUDA_VISIBLE_DEVICES by index, UUID or MIG UUID, in PCI bus order, and control groups.
// A rank that sees exactly one GPU uses it. Ranks beyond the number of GPUs get none.
std::vector<RankSite> resolve_ranks(const Topology& topology,
                                    const std::vector<RankEnvironment>& ranks);

// Sites of ranks whose hosts are given, one host id for each rank. The n-th rank on a host gets the
// host's n-th GPU, or none when the host has fewer.
std::vector<RankSite> assign_gpus(const Topology& topology, const std::vector<std::string>& hosts);

// Sites that a launcher would give to `count` ranks: one rank on each GPU, host by host; without
// GPUs, equal blocks of ranks on all hosts. 0 means one rank on each GPU. Error(invalid_argument)
// when there are more ranks than GPUs, and for 0 without GPUs.
std::vector<RankSite> fill_hosts(const Topology& topology, int count);

struct MeshPlan {
  int replicate = 1;
  int shard = 1;
  int inner = 1;  // innermost axis, below the shard axis, for tensor parallelism
  // Ranks in mesh order, the last axis varying fastest: the rank at (r, s, i) is
  // order[(r * shard + s) * inner + i].
  std::vector<int> order;
  std::vector<int> left_out;  // ranks without which the job would run faster
  std::string why;            // explanation of the choice, for people
  std::vector<Finding> findings;
};

struct MeshPlanOptions {
  int emulated_islands = 0;  // split the ranks, in order, into this many equal islands; 0: do not
  int inner = 1;             // size of the innermost axis
  // With `params`, plan_mesh() shards over the smallest of island, host and k islands whose memory
  // holds the sharded state of the model.
  std::optional<double> params = {};            // number of parameters of the model
  std::optional<double> gpu_memory_bytes = {};  // memory of one GPU; empty: from the topology
  double state_bytes = 16;  // bytes for each parameter: weights, gradients, optimizer state
  double reserve = 0.20;    // share of the memory kept for activations and buffers, from 0 to 1
};

// Plans a mesh: shards over the larger of island and host and replicates across; with `params`,
// shards over the smallest candidate that holds the model. A pure function of its arguments, so
// every rank gets the same answer, in whatever order the launcher numbered the ranks.
//
// `order` holds all ranks. When islands are unequal and the modelled step is faster without some
// ranks, `left_out` and a finding name them. A host that the topology does not list counts as a
// host without GPUs.
//
// Error(invalid_argument) without ranks, for a GPU that the topology does not list, when the
// emulated islands or `inner` do not divide the ranks, and when no candidate holds the model; the
// message then names the missing memory.
MeshPlan plan_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                   const MeshPlanOptions& options = {});

// Checks a mesh that was made by hand. Each shard group that crosses islands gives a finding: the
// islands that it joins, the links that it crosses, and the bandwidth lost. Error(invalid_argument)
// unless `plan.order` holds every rank once and fits the shape.
std::vector<Finding> check_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                                const MeshPlan& plan, const MeshPlanOptions& options = {});

// Modelled speed of a group of ranks that communicate: the slowest part of a ring through the
// group, in the given order, and the latency of its hops.
struct GroupRate {
  // GB/s of each rank in one direction: n ranks gather B bytes in (n - 1) / n * B / gbyte_s. This
  // is the bus bandwidth of nccl-tests. 0: unknown. Infinite for a group of one rank.
  double gbyte_s = 0;
  double latency_us = 0;    // time of the smallest collective
  bool is_assumed = false;  // the group crosses a link whose rate no source gives
  bool is_known() const noexcept { return gbyte_s > 0; }
};
// `group` holds numbers of `ranks`. Error(invalid_argument) as for plan_mesh(), and for a number
// out of range.
GroupRate group_rate(const Topology& topology, const std::vector<RankSite>& ranks,
                     const std::vector<int>& group, const MeshPlanOptions& options = {});

// Rates of two-level collectives over a group for which HostLayout::ranks_per_host() of level_schedule.hpp is not 0. inside: among
// the ranks of one host. across: among ranks in equal positions of all hosts, while all positions
// communicate at once. Each is the slowest of its kind; unknown for other groups.
struct LevelRates {
  GroupRate inside{}, across{};
};

// Rates of the mesh axes. Each is the slowest group of its axis, since all ranks wait for it, and
// so is equal on all ranks. `world` is the group of all ranks, in mesh order.
struct MeshRates {
  GroupRate shard{}, replicate{}, world{};
  LevelRates shard_levels{}, replicate_levels{}, world_levels{};
};
// Error(invalid_argument) as for check_mesh().
MeshRates mesh_rates(const Topology& topology, const std::vector<RankSite>& ranks,
                     const MeshPlan& plan, const MeshPlanOptions& options = {});

}  // namespace atoll_v1::atoll

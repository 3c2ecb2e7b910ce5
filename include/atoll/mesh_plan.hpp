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
  std::string host;            // id of the rank's host (TopologyHost::id)
  std::string gpu;             // id of the rank's GPU (TopologyGpu::id); empty without a GPU
  std::string partition = {};  // UUID of the rank's MIG or CPX instance; "" for a whole GPU
  std::vector<int> cpus = {};  // hardware threads on which the rank may run; empty if unknown
  int numa = -1;               // NUMA node of the rank's hardware threads; -1 if several or unknown
};

// The report of a rank's process about itself.
struct RankEnvironment {
  std::string host;          // id of the rank's host (TopologyHost::id)
  int local_rank = 0;        // index of the rank among the ranks of its host
  std::string visible;       // value of CUDA_VISIBLE_DEVICES (ROCR_ or HIP_VISIBLE_DEVICES)
  bool has_visible = false;  // whether CUDA_VISIBLE_DEVICES is set; set and empty hides all GPUs
  std::vector<std::string> allowed_busids = {};  // GPUs that control groups allow; empty allows all
  std::vector<int> cpus = {};                    // hardware threads of the rank; empty if unknown
  int numa = -1;                                 // NUMA node of the rank; -1 if several or unknown
};

// Finds the GPU of each rank. A rank sees the GPUs that control groups allow, in PCI bus order;
// CUDA_VISIBLE_DEVICES can select from these by index, UUID or MIG UUID. Ranks of one host that see
// the same GPUs get one GPU each, in the order of their local ranks; ranks beyond the number of
// GPUs get none. A rank that sees exactly one GPU uses that GPU.
ATOLL_API std::vector<RankSite> resolve_ranks(const Topology& topology,
                                              const std::vector<RankEnvironment>& ranks);

// Returns the sites of ranks on known hosts; `hosts` has one host id for each rank. The n-th rank
// on a host gets the host's n-th GPU, or none when the host has fewer GPUs.
ATOLL_API std::vector<RankSite> assign_gpus(const Topology& topology,
                                            const std::vector<std::string>& hosts);

// Returns the sites that a launcher would give to `count` ranks: one rank on each GPU, host by
// host; without GPUs, equal blocks of ranks on all hosts. A `count` of 0 requests one rank on each
// GPU. Throws Error(invalid_argument) when there are more ranks than GPUs, and when `count` is 0
// but there are no GPUs.
ATOLL_API std::vector<RankSite> fill_hosts(const Topology& topology, int count);

struct MeshPlan {
  int replicate = 1;
  int shard = 1;
  int tensor = 1;  // size of the innermost axis, "tensor", which is for tensor parallelism
  // Ranks in mesh order, the last axis varying fastest: the rank at (r, s, i) is
  // order[(r * shard + s) * tensor + i].
  std::vector<int> order;
  std::vector<int> left_out;  // ranks without which the job would run faster
  std::string why;            // explanation of the choice of the mesh, for people
  std::vector<Finding> findings;
};

struct MeshPlanOptions {
  int emulated_islands = 0;  // number of equal islands to emulate, in rank order; 0 emulates none
  int tensor = 1;            // size of the mesh's innermost axis
  // With `params`, plan_mesh() shards over the smallest of island, host and k islands whose memory
  // holds the sharded state of the model.
  std::optional<double> params = {};            // number of parameters of the model
  std::optional<double> gpu_memory_bytes = {};  // memory of one GPU; empty uses the topology's
  double state_bytes = 16;  // bytes for each parameter: weights, gradients, optimizer state
  double reserve = 0.20;    // share of the memory kept for activations and buffers, from 0 to 1
};

// Plans a mesh. Without `params`, it shards over the island or the host, whichever is larger, and
// replicates across; with `params`, it shards over the smallest candidate that holds the model. The
// result depends on the arguments alone, so every rank gets the same plan, in whatever order the
// launcher numbered the ranks.
//
// `order` of the plan holds all ranks. When islands are unequal and the modelled step is faster
// without some ranks, `left_out` and a finding name these ranks. A host that the topology does not
// list is treated as a host without GPUs.
//
// Throws Error(invalid_argument) when `ranks` is empty, for a GPU that the topology does not list,
// when the emulated islands or `tensor` do not divide the ranks, and when no candidate holds the
// model; the message then states how much memory is missing.
ATOLL_API MeshPlan plan_mesh(const Topology& topology, const std::vector<RankSite>& ranks,
                             const MeshPlanOptions& options = {});

// Checks a mesh that was made by hand. Returns a finding for each shard group that crosses islands,
// with the islands that it joins, the links that it crosses, and the bandwidth lost. Throws
// Error(invalid_argument) unless `plan.order` holds every rank once and fits the shape.
ATOLL_API std::vector<Finding> check_mesh(const Topology& topology,
                                          const std::vector<RankSite>& ranks, const MeshPlan& plan,
                                          const MeshPlanOptions& options = {});

// Modelled speed of a group of ranks that communicate: the slowest part of a ring through the
// group, in the given order, and the latency of its hops.
struct GroupRate {
  // Bus bandwidth of each rank in one direction, in GB/s, as nccl-tests defines it (see
  // transfer_s()). 0 means unknown; infinite for a group of one rank.
  double gbyte_s = 0;
  double latency_us = 0;    // time that a collective of a few bytes takes
  bool is_assumed = false;  // true when the rate of a link is unknown and was assumed
  bool is_known() const noexcept { return gbyte_s > 0; }
  // Seconds in which the ring of an all_gather or reduce_scatter moves a tensor of `bytes` over all
  // ranks, of which each rank sends (ranks - 1) / ranks. An all_reduce takes twice as long.
  double transfer_s(double bytes, int ranks) const noexcept {
    return (ranks - 1) * bytes / ranks / (gbyte_s * 1e9);
  }
  double seconds(double bytes, int ranks) const noexcept {
    return latency_us * 1e-6 + transfer_s(bytes, ranks);
  }
};
// `group` holds indices into `ranks`. Throws the same errors as plan_mesh(), and
// Error(invalid_argument) for an index out of range.
ATOLL_API GroupRate group_rate(const Topology& topology, const std::vector<RankSite>& ranks,
                               const std::vector<int>& group, const MeshPlanOptions& options = {});

// Rates of two-level collectives over a group on several hosts that all have the same number of
// ranks, at least two, in consecutive positions of the group; unknown for other groups. `intra`
// is the rate among the ranks of one host. `inter` is the rate among the ranks with the same local
// rank on all hosts, while the groups of all local ranks communicate at once. Each is the rate of
// the slowest group of its kind.
struct LevelRates {
  GroupRate intra{}, inter{};
  bool are_known() const noexcept { return intra.is_known() && inter.is_known(); }
  // Seconds of a two-level collective that moves a tensor of `bytes` over `ranks` ranks. Each host
  // has `per_host` of them.
  double seconds(double bytes, int ranks, int per_host) const noexcept {
    return inter.seconds(bytes / per_host, ranks / per_host) + intra.seconds(bytes, per_host);
  }
};

// Rates of the mesh axes. The rate of an axis is that of its slowest group, because all ranks wait
// for that group, so the rate is equal on all ranks. `world` is the rate of all ranks as one group,
// in mesh order.
struct MeshRates {
  GroupRate shard{}, replicate{}, world{};
  LevelRates shard_levels{}, replicate_levels{}, world_levels{};
};
// Throws the same errors as check_mesh().
ATOLL_API MeshRates mesh_rates(const Topology& topology, const std::vector<RankSite>& ranks,
                               const MeshPlan& plan, const MeshPlanOptions& options = {});

}  // namespace atoll_v1::atoll

// Chooses a sharding strategy for a mesh, a model and a memory size, before an engine exists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

struct StrategyQuestion {
  MeshShape mesh{};
  // Bandwidth and latency of the mesh's axes. If the bandwidth of an axis with several ranks is
  // unknown, every link is assumed to carry 1 GB/s.
  MeshRates rates{};
  // Options of the engine that the estimates assume: precision, accumulation, secondary shards,
  // prefetch and number of buffers. Options::strategy is ignored.
  Options options{};
  std::uint64_t parameters = 0;  // number of elements of all parameters
  std::uint64_t frozen = 0;  // number of elements of frozen parameters, which `parameters` includes
  // Number of elements of quantized parameters, which `frozen` includes. If it is above 0, only
  // full_shard and hybrid_shard are possible.
  std::uint64_t quantized = 0;
  // Number of elements of the largest unit. 0 means unknown; the estimates then omit the buffers
  // for unsharded units.
  std::uint64_t largest_unit = 0;
  int units = 1;
  int micro_batches = 1;  // number of micro batches in a step
  // Bytes of moments per parameter element: 8 for AdamW, 4 with bf16 moments, 0 for SGD.
  std::uint64_t moment_bytes = 8;
  std::uint64_t activation_bytes = 0;
  // Device memory of one rank, in bytes. 0 means unknown; every strategy is then assumed to fit.
  std::uint64_t memory_bytes = 0;
  double reserve = 0.1;  // fraction of memory_bytes that no plan may use
};

struct StrategyEstimate {
  Strategy strategy{};
  // Estimated memory of a rank in bytes: sharded state, buffers for gathered units, and
  // activations. Excludes padding and the scratch of fallback reductions.
  std::uint64_t bytes = 0;
  // Modelled communication time of a step, without overlap. A collective over all ranks is modelled
  // as one inside the shard axis and one across it. On an axis, a collective takes
  // GroupRate::transfer_s() and one latency per unit; an all-reduce takes twice as long. Parameters
  // that stay unsharded are gathered once per step; other parameters are gathered twice per micro
  // batch, as if no buffer kept them between forward and backward.
  double seconds = 0;
  bool fits = true;
};

struct StrategyChoice {
  Strategy strategy{};
  std::string why;  // sentence that explains the choice, with times and bytes
  // One entry for each strategy that an engine supports with the given options.
  std::vector<StrategyEstimate> estimates;
};

// Returns the strategy with the least communication time among the strategies that fit in memory.
// If several are within 1 % of the best time, returns the one of these that needs the least memory.
// If no strategy fits, returns the strategy that needs the least memory, and `why` states this. The
// model ignores overlap with compute: if compute hides all communication, a strategy that needs
// less memory may be equally fast. The result depends on `question` alone, so it is the same on all
// ranks that pass the same values. Throws Error(invalid_argument) for sizes or counts below 1,
// options that no engine supports, and a reserve outside [0, 1).
ATOLL_API StrategyChoice choose_strategy(const StrategyQuestion& question);

// Returns the modelled rates of the axes that an engine uses (Axis::rate and Axis::levels). The
// estimates of choose_strategy() do not use levels, as collectives over all ranks already consist
// of one inside the shard axis and one across it.
// GroupRate::is_assumed marks a rate that includes a link of unknown rate. Throws
// Error(invalid_argument) for a mesh without the shard axis.
ATOLL_API MeshRates rates_of(const Mesh& mesh, const EngineAxes& axes = {});

}  // namespace atoll_v1::atoll::fsdp

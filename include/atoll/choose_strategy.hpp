// Chooses a sharding strategy for a mesh, a model and a device memory, before anything is built.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

struct StrategyQuestion {
  MeshShape mesh{};
  // Rates of the mesh's axes. If the rate of an axis with several ranks is unknown, every link
  // counts as 1 GB/s.
  MeshRates rates{};
  // Precision, accumulation, inner shards, prefetch and buffers of the engine. The strategy in it
  // is ignored.
  Options options{};
  std::uint64_t parameters = 0;    // elements of the model
  std::uint64_t frozen = 0;        // parameters without gradients and moments; part of `parameters`
  std::uint64_t largest_unit = 0;  // elements; 0: unknown, buffers for gathered units not counted
  int units = 1;
  int micro_batches = 1;           // in a step
  std::uint64_t moment_bytes = 8;  // per parameter: 8 for AdamW, 4 with bf16 moments, 0 for SGD
  std::uint64_t activation_bytes = 0;
  std::uint64_t memory_bytes = 0;  // of one rank's device; 0: unknown, every strategy fits
  double reserve = 0.1;            // share of memory_bytes that no plan may use
};

struct StrategyEstimate {
  Strategy strategy{};
  // Memory of a rank by the categories of MemoryPlan: sharded state, buffers for gathered units,
  // and activations. Excludes padding and the scratch of fallback reductions.
  std::uint64_t bytes = 0;
  // Time of a step's communication if nothing overlapped. Every collective has two levels, each
  // with the bytes of a ring at the rate of its axis and one latency per unit. Resident parameters
  // are gathered once a step; others are gathered twice a micro batch, as if no buffer kept them.
  double seconds = 0;
  bool fits = true;
};

struct StrategyChoice {
  Strategy strategy{};
  std::string why;  // one sentence with the figures
  // One entry for each strategy that an engine supports with the given options.
  std::vector<StrategyEstimate> estimates;
};

// Returns the strategy with the least communication among those that fit; among strategies within
// 1 % of it, the one with the least memory. If none fits, returns the one with the least memory and
// says so in `why`. Overlap with compute is unknown here: if compute hides all communication, a
// smaller strategy may be equally fast. A pure function: equal questions give equal answers on all
// ranks. Error(invalid_argument): sizes or counts below 1, options that no engine supports, or a
// reserve outside [0, 1).
StrategyChoice choose_strategy(const StrategyQuestion& question);

// The measured or assumed rates of a mesh's axes.
MeshRates rates_of(const Mesh& mesh);

}  // namespace atoll_v1::atoll::fsdp

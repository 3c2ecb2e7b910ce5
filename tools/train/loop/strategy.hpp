// Turns the trainer's options into a sharding strategy and options of the engine and optimizer.
#pragma once

#include <cstdint>
#include <string>

#include "atoll/choose_strategy.hpp"
#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"
#include "loop/options.hpp"
#include "model/activations.hpp"

namespace train {

// Memory of a rank's device; equal on all ranks, so that all choose the same strategy.
struct DeviceMemory {
  atoll::DeviceKind kind = atoll::DeviceKind::cpu;
  std::uint64_t bytes = 0;       // capacity; 0: unknown. RunOptions::memory_limit overrides it
  std::uint64_t arithmetic = 0;  // bytes within the capacity that the kernels (Ops) hold
};

// The inputs from which the memory that a strategy needs is estimated.
struct PlannedRun {
  const RunOptions& options;
  const ModelConfig& model;
  const atoll::Mesh& mesh;
  DeviceMemory memory;
};

// `micro_batches` is the number per step on each rank. Returns only the strategy, without a reason,
// if the user chose it.
atoll::fsdp::StrategyChoice choose_strategy(const PlannedRun& run, int micro_batches);

// Estimated bytes of a rank with this strategy, activations included.
std::uint64_t planned_bytes(const PlannedRun& run, int micro_batches,
                            atoll::fsdp::Strategy strategy);

struct MicroBatchChoice {
  std::int32_t rows = 1;
  std::string why;  // reason for the number of rows, one sentence for the log
};

// Chooses the number of rows for --micro-batch 0: of the numbers that split the `samples` of a rank
// and step into equal parts, or nearly so, the largest with which the strategy fits in memory.
// `memory.arithmetic` need not be known yet. If nothing fits, the number is 1.
MicroBatchChoice largest_micro_batch(const PlannedRun& run, std::int64_t samples);

ActivationPlan activation_plan(const RunOptions& options, atoll::DeviceKind device);

// Bytes on a rank's device outside the engine, as far as they are known before allocation.
std::uint64_t bytes_beside_engine(const RunOptions& options, const ModelConfig& model,
                                  const DeviceMemory& memory);

atoll::fsdp::Options engine_options(const RunOptions& options, const ModelConfig& model,
                                    atoll::fsdp::Strategy strategy, const atoll::Device& device,
                                    const DeviceMemory& memory);
atoll::fsdp::OptimizerOptions optimizer_options(const RunOptions& options);

}  // namespace train

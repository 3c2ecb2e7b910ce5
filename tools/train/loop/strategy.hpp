// How the model is sharded: as the options say, or as the library chooses; and the rest of what the
// engine is asked for.
#pragma once

#include <cstdint>
#include <string>

#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"
#include "loop/options.hpp"
#include "model/activations.hpp"

namespace train {

struct Strategy {
  atoll::fsdp::Strategy kind{};
  std::string why;  // a sentence; "": it was asked for
};

// Of a rank's device, equal on all so that they choose alike.
struct DeviceMemory {
  atoll::DeviceKind kind = atoll::DeviceKind::host;
  std::uint64_t bytes = 0;       // 0: unknown; a limit in the options counts instead
  std::uint64_t arithmetic = 0;  // of these, what Ops holds for itself
};

// micro_batches: of a step, on each rank.
Strategy choose_strategy(const RunOptions& options, const ModelConfig& model,
                         const atoll::Mesh& mesh, const DeviceMemory& memory, int micro_batches);

// Units that the engine gathers ahead: those of the options, and, with a tied head, which computes
// with two units at a time, one more.
int engine_prefetch(const RunOptions& options, const ModelConfig& model);

ActivationPlan activation_plan(const RunOptions& options, atoll::DeviceKind device);

// What a rank's device holds that is not the engine's, as far as it is known before it is
// allocated.
std::uint64_t bytes_beside_engine(const RunOptions& options, const ModelConfig& model,
                                  const DeviceMemory& memory);

// What the engine and its optimizer are asked for.
atoll::fsdp::Options engine_options(const RunOptions& options, const ModelConfig& model,
                                    const Strategy& strategy, const atoll::Device& device,
                                    const DeviceMemory& memory);
atoll::fsdp::OptimizerOptions optimizer_options(const RunOptions& options);

}  // namespace train

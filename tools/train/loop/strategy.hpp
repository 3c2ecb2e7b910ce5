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

// memory_bytes: what each rank has, equal on all so that they choose alike; a limit in the options
// counts instead.
Strategy choose_strategy(const RunOptions& options, const ModelConfig& model,
                         const atoll::Mesh& mesh, std::uint64_t memory_bytes);

// Units that the engine gathers ahead: those of the options, and, with a tied head, which computes
// with two units at a time, one more.
int engine_prefetch(const RunOptions& options, const ModelConfig& model);

ActivationPlan activation_plan(const RunOptions& options);

// What the engine and its optimizer are asked for.
atoll::fsdp::Options engine_options(const RunOptions& options, const ModelConfig& model,
                                    const Strategy& strategy, const atoll::Device& device);
atoll::fsdp::OptimizerOptions optimizer_options(const RunOptions& options);

}  // namespace train

// What a run begins with.
#pragma once

#include <cstdint>

#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"
#include "loop/options.hpp"
#include "model/config.hpp"

namespace train {

// Weights, and moments where the run goes on: of the checkpoint of --resume, of the files of
// --init, or by chance. Returns how many steps the checkpoint has; else 0. Collective.
std::int64_t start_weights(const RunOptions& options, const ModelConfig& model,
                           atoll::fsdp::Engine& engine, atoll::fsdp::Optimizer& optimizer);

}  // namespace train

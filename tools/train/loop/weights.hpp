// Initial weights of a run.
#pragma once

#include <cstdint>

#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"
#include "loop/options.hpp"
#include "model/config.hpp"

namespace train {

// Loads weights and moments from the checkpoint of --resume, or weights from the files of --init,
// or draws random weights. Returns the steps that the checkpoint has completed, otherwise 0.
// Collective.
std::int64_t start_weights(const RunOptions& options, const ModelConfig& model,
                           atoll::fsdp::Engine& engine, atoll::fsdp::Optimizer& optimizer);

}  // namespace train

// An earlier run as the start of a new one: --init RUN and --model RUN take the model, the weights
// and the tokenizer of its last checkpoint, and no state of its optimizer.
#pragma once

#include <filesystem>
#include <string>

#include "atoll/fsdp.hpp"
#include "loop/options.hpp"
#include "loop/setup.hpp"
#include "model/config.hpp"

namespace train {

// The checkpoint at a place: the place itself, or the one to which a results folder leads; empty
// for other places.
std::filesystem::path checkpoint_at(const std::filesystem::path& place);

// The model that a checkpoint has. Throws Error(unsupported) that names `atoll-train export` for
// weights that start_from() cannot take.
ModelConfig model_of_checkpoint(const std::filesystem::path& checkpoint, const RunOptions& options);

// The tokenizer of the run that saved a checkpoint; "" if its folder does not record it, or it has
// none.
std::string tokenizer_of_run(const std::filesystem::path& checkpoint);

// Loads the weights of Setup::checkpoint. Call it before the engine gets an optimizer or a state.
// Collective.
void start_from(const RunOptions& options, const Setup& setup, atoll::fsdp::Engine& engine);

}  // namespace train

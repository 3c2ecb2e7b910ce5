// --export: a model that Hugging Face's libraries open.
#pragma once

#include "atoll/fsdp.hpp"
#include "atoll/world.hpp"
#include "loop/options.hpp"
#include "loop/setup.hpp"

namespace train {

// Throws Error(io) if the files of --export could not be written, and Error(invalid_argument) if
// they would replace those that the run starts from.
void check_export(const RunOptions& options);

// Writes the model to --export: a folder with config.json, model.safetensors and the files of the
// tokenizer, or only the weights if the path ends in .safetensors. Collective. Blocks. Throws
// Error(io) that names the file; an error in writing another file than the weights is only rank 0's.
void export_model(const atoll::World& world, const RunOptions& options, const Setup& setup,
                  atoll::fsdp::Engine& engine);

}  // namespace train

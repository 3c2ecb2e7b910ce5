// --export: a model that Hugging Face's libraries open.
#pragma once

#include <filesystem>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/world.hpp"
#include "loop/model_source.hpp"
#include "loop/options.hpp"
#include "loop/setup.hpp"

namespace train {

// The files that --export writes; none without the flag.
std::vector<std::filesystem::path> export_files(const RunOptions& options);

// Throws Error(io) if the files of --export could not be written.
void check_export(const RunOptions& options);

// Throws Error(invalid_argument) if --export names the folder of the weights of `source`, or of a
// file to which they link: the export would replace the model that the run starts from. Throws it
// also for adapters beside a whole model. `weights` are the files that the run loads.
void check_export_spares(const RunOptions& options, const ModelSource& source,
                         const std::vector<std::filesystem::path>& weights);

// Writes the model to --export: a folder with config.json, model.safetensors and the files of the
// tokenizer, or only the weights if the path ends in .safetensors. Collective. Blocks. Throws
// Error(io) that names the file; if it is a file other than the weights, only rank 0 throws.
void export_model(const atoll::World& world, const RunOptions& options, const Setup& setup,
                  atoll::fsdp::Engine& engine);

}  // namespace train

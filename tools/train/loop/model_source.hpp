// Where a run's model comes from: a preset, a config.json, a folder, or the Hub's local cache.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"
#include "loop/options.hpp"
#include "model/config.hpp"

namespace train {

struct ModelSource {
  ModelConfig config;
  std::filesystem::path weights;       // file or folder of the weights to start from; empty: random
  std::filesystem::path file;          // path of the config.json; empty for a preset
  std::filesystem::path checkpoint{};  // checkpoint of a run to start from, instead of `weights`
};

// Reads the model of --init, otherwise that of --model. A model with weights starts from them,
// unless --init is "none". Both flags may name a run. A preset has `vocab` ids, or its usual number
// of them if `vocab` is 0. Throws Error(not_found, io, bad_data or unsupported) that names the
// file, and for a folder that has adapters (LoRA) and no model.
ModelSource find_model(const RunOptions& options, std::int64_t vocab);

// Sets --tokenizer to the path of a tokenizer.model or tokenizer.json if it names a folder or a
// model on the Hub, or if it is auto, the data are text and the model's folder has one. Throws
// Error(invalid_argument) for a folder without one.
void choose_tokenizer(RunOptions& options);

// The file or folder that --model or --init names, also in the Hub's local cache; empty if this
// machine lacks it.
std::filesystem::path local_model(const std::string& text);

// Returns a warning if adapters (LoRA) lie beside a model that comes with weights; otherwise "".
std::string unapplied_adapters(const ModelSource& source);

// Returns a warning if the model comes with weights, and the tokenizer has far fewer ids than the
// model; otherwise "".
std::string few_ids(const ModelSource& source, const Tokenizer& tokenizer);

// Returns a warning if files of weights have tensors that the model has no parameter for; otherwise
// "". Reads the headers of the files.
std::string unused_weights(const ModelConfig& model,
                           const std::vector<std::filesystem::path>& weights);

// Throws Error(mismatch) for the first tensor whose shape is not the one that config.json gives it,
// before memory is allocated for the model. Reads the headers of the files.
void check_shapes(const ModelConfig& model, const std::vector<std::filesystem::path>& weights);

// The name of the model for reports and the default run name: that of the preset, of the folder, or
// of the model on the Hub.
std::string model_name(const RunOptions& options);

}  // namespace train

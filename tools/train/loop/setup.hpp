// What a run needs before its engine: tokenizer, data, model shape, mesh, arithmetic, strategy.
// Everything that can be wrong with the input is found here, on every rank alike.
#pragma once

#include <memory>
#include <string>

#include "atoll/mesh.hpp"
#include "data/batches.hpp"
#include "data/dataset.hpp"
#include "loop/machine.hpp"
#include "loop/options.hpp"
#include "loop/strategy.hpp"
#include "model/config.hpp"

namespace train {

struct Setup {
  std::unique_ptr<const Tokenizer> tokenizer;
  ModelConfig model;
  Dataset dataset;
  atoll::Mesh mesh;
  Machine machine;  // its arithmetic has reserved what the model takes
  DeviceMemory memory;
  Strategy strategy;
};

// Collective. Throws Error(mismatch) that names the rank whose data or options differ from rank
// 0's.
Setup prepare(atoll::World& world, const RunOptions& options);

BatchOptions batch_options(const RunOptions& options, const Tokenizer& tokenizer);

// The tensor of this parameter in Hugging Face's files.
std::string hf_name(const ModelConfig& model, std::string_view unit, std::string_view param);

}  // namespace train

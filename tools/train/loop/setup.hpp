// Prepares a run before its engine exists: tokenizer, data, model shape, mesh, kernels, strategy.
// All checks of the input happen here, alike on every rank.
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
  Machine machine;  // its kernels have reserved scratch memory for the model
  DeviceMemory memory;
  Strategy strategy;
};

// Collective. Throws Error(mismatch) that names a rank when its data or options differ from those
// of rank 0.
Setup prepare(atoll::World& world, const RunOptions& options);

BatchOptions batch_options(const RunOptions& options, const Tokenizer& tokenizer);

// The Hugging Face name of this parameter.
std::string hf_name(const ModelConfig& model, std::string_view unit, std::string_view param);

}  // namespace train

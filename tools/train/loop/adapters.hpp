// Fine-tuning with adapters (LoRA): which matrices have them, and their files in PEFT's format.
#pragma once

#include <filesystem>
#include <string>

#include "atoll/fsdp.hpp"
#include "loop/options.hpp"
#include "model/config.hpp"

namespace train {

// Returns the adapters that --lora-rank, --lora-alpha and --lora-targets ask for. Throws
// Error(invalid_argument) that names the flag.
Adapters adapters_of(const RunOptions& options);

// Writes adapter_model.safetensors and adapter_config.json, which peft loads onto the model `base`.
// `is_first` is true on the World's rank 0, which writes the latter. Collective over the ranks of
// the engine. Throws Error(io).
void export_adapters(const std::filesystem::path& folder, atoll::fsdp::Engine& engine,
                     const ModelConfig& model, const std::string& base, atoll::DType dtype,
                     bool is_first);

// Adds alpha / rank * B A to the matrices that have adapters, in f32, rounded once to the type of
// their values. The engine's weights without the adapters are then the merged model. Collective;
// gathers one unit at a time.
void merge_adapters(atoll::fsdp::Engine& engine, const ModelConfig& model);

}  // namespace train

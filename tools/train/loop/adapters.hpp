// Fine-tuning with adapters (LoRA): which matrices have them, and their files in PEFT's format.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/fsdp.hpp"
#include "loop/options.hpp"
#include "model/config.hpp"

namespace train {

// Returns the adapters that the flags ask for. --lora-targets has shell patterns (with * ? [...]),
// each of which must match a matrix of a layer of `model`: its Hugging Face name without ".weight",
// such as model.layers.0.self_attn.q_proj, or what follows a dot of the name, such as q_proj.
// Throws Error(invalid_argument) for a pattern that matches nothing.
Adapters adapters_of(const ModelFlags& flags, const ModelConfig& model);

// The matrices with adapters as PEFT's target_modules lists them: last parts of names, or whole
// names if layers differ.
std::vector<std::string> target_modules(const ModelConfig& model);

// The files of adapters in PEFT's format.
inline constexpr std::string_view adapter_weights_name = "adapter_model.safetensors";
inline constexpr std::string_view adapter_config_name = "adapter_config.json";

struct AdapterExport {
  const ModelConfig& model;
  std::string base;      // folder or Hub name of the base model; empty if its weights are random
  std::string revision;  // revision of a base model on the Hub; empty: the newest
  atoll::DType dtype;
  bool is_first;  // true on the World's rank 0, which writes adapter_config.json
};

// Writes both files into the folder. peft loads them onto the base model. Collective over the ranks
// of the engine. Throws Error(io).
void export_adapters(const std::filesystem::path& folder, atoll::fsdp::Engine& engine,
                     const AdapterExport& what);

// Adds alpha / rank * B A to the matrices that have adapters, in f32, rounded once to the type of
// their values. The engine's weights without the adapters are then the merged model. Collective;
// gathers one unit at a time.
void merge_adapters(atoll::fsdp::Engine& engine, const ModelConfig& model);

}  // namespace train

// Sharded checkpoints: every shard index of replica 0 writes its own file, nobody gathers anything,
// and a checkpoint loads at any world size, mesh and strategy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"

namespace atoll_v1::atoll::fsdp {

// A folder with `index.json` (layout: units, parameters, shapes, offsets; number of shards;
// `extra`) and one safetensors file per shard, `shard-00000-of-00004.safetensors`, that holds for
// each unit the flat tensors UNIT/weights (f32), UNIT/moment1 and UNIT/moment2 (f32 or bf16; either
// is read as what the optimizer has).
//
// Collective; blocks. The folder appears whole or not at all: files are written and synced under a
// temporary name beside it, and renamed by one rank after all are done; an existing folder of that
// name is replaced. Throws Error(io) that names the file, on every rank.
void save(const std::filesystem::path& folder, Engine& engine, const Optimizer& optimizer,
          const std::map<std::string, std::string>& extra = {});

// Collective; blocks. Each rank reads the parts of its own shards only. The units and shapes must
// be those of the engine: Error(mismatch) names the first difference. Returns `extra`.
std::map<std::string, std::string> load(const std::filesystem::path& folder, Engine& engine,
                                        Optimizer& optimizer);

// The name of a parameter in files of others, "model.layers.0.mlp.up_proj.weight".
using ParamName = std::function<std::string(const Unit&, const ParamSpec&)>;

// One safetensors file with every parameter whole, in `dtype` (f32, bf16 or f16). Collective;
// blocks. Rank 0 writes it unit by unit, so that no rank ever holds more than one whole unit; the
// file appears whole or not at all. Throws Error(io) on every rank.
void export_weights(const std::filesystem::path& file, Engine& engine, DType dtype,
                    const ParamName& name);

// Fills the shards of every rank from safetensors files (f32, bf16 or f16) that together hold every
// parameter under its name and shape. Collective; blocks; each rank reads its own parts only.
// Throws Error(not_found, mismatch) that names file and tensor, on every rank.
void import_weights(const std::vector<std::filesystem::path>& files, Engine& engine,
                    const ParamName& name);

}  // namespace atoll_v1::atoll::fsdp

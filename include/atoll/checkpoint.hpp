// Sharded checkpoints, and import and export of whole weights as safetensors. A checkpoint is
// written without gathering, and loads at any world size, mesh and strategy.
//
// All functions are collective over the ranks of the engine, and block. A failure on one rank
// throws the same Error on all of them. On a mesh with axes that the engine does not use, each
// coordinate on these axes has an engine of its own, and each engine must use its own folder or
// file, such as "out/tensor-" + std::to_string(mesh.axis("tensor").index).
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

// Writes a folder that contains `index.json` (units, parameters, shapes, offsets, number of shards,
// `extra`) and one safetensors file per shard, such as `shard-00000-of-00004.safetensors`. A shard
// file holds flat tensors for each bucket: UNIT/BUCKET/weights, the moments of an Optimizer as
// UNIT/BUCKET/moment1 and UNIT/BUCKET/moment2 (f32 or bf16; load() converts), and each state of
// Engine::add_state() as UNIT/BUCKET/state.NAME. Each rank of replica 0 writes the file of its own
// shard.
//
// The folder appears complete or not at all: files are written and synced to a temporary folder
// beside it, which the engine's lowest rank renames when all ranks are done. An existing folder of
// that name is replaced. All ranks must see the same file system. Error(io) names the file.
ATOLL_API void save(const std::filesystem::path& folder, Engine& engine, const Optimizer& optimizer,
                    const std::map<std::string, std::string>& extra = {});
// For callers with an optimizer of their own. Numbers that it needs besides the states of
// Engine::add_state(), such as a count of steps, belong in `extra`.
ATOLL_API void save(const std::filesystem::path& folder, Engine& engine,
                    const std::map<std::string, std::string>& extra = {});

// Reads a checkpoint. Each rank reads only the parts that its own shards need. Units, shapes, the
// kind of optimizer and the names of states must be those of the engine: otherwise Error(mismatch)
// names the first difference. Call Engine::add_state() before load(). The number of shards,
// strategy, dtypes and frozen parameters may differ from those at the time of saving. Returns the
// `extra` that was passed to save().
ATOLL_API std::map<std::string, std::string> load(const std::filesystem::path& folder,
                                                  Engine& engine, Optimizer& optimizer);
ATOLL_API std::map<std::string, std::string> load(const std::filesystem::path& folder,
                                                  Engine& engine);

// Returns the name of a parameter in a weights file, such as "model.layers.0.mlp.up_proj.weight".
using ParamName = std::function<std::string(const Unit&, const ParamSpec&)>;

// Writes one safetensors file with all parameters unsharded, as `dtype` (f32, bf16 or f16). The
// engine's lowest rank writes unit by unit, so that no rank holds more than one whole unit. The
// file appears complete or not at all. Error(io) names the file.
ATOLL_API void export_weights(const std::filesystem::path& file, Engine& engine, DType dtype,
                              const ParamName& name);

// Fills the shards of every rank from safetensors files (f32, bf16 or f16) that together contain
// every parameter with its name and shape. Each rank reads only its own parts. Throws
// Error(not_found) or Error(mismatch), which name file and tensor.
ATOLL_API void import_weights(const std::vector<std::filesystem::path>& files, Engine& engine,
                              const ParamName& name);

}  // namespace atoll_v1::atoll::fsdp

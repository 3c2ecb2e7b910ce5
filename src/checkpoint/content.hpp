// What a checkpoint of an engine holds: the flat tensors of its buckets, and the index.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"
#include "checkpoint/live_save.hpp"

namespace atoll_v1::atoll::fsdp {

std::string tensor_name(std::string_view unit, std::string_view bucket, std::string_view what);
std::string state_tensor(std::string_view state);
// Returns the name of the tensor that holds a state of one parameter; the state is not elementwise.
std::string whole_tensor(std::string_view unit, std::string_view param, std::string_view state);

// In the functions below, `optimizer` is null if the caller brings its own optimizer.

// The tensors of this rank, in the order of units and their buckets.
std::vector<UnitTensors> tensors_of(Engine& engine, const Optimizer* optimizer);

// The settings of each trainable parameter, with its name, "UNIT.PARAM"; empty if the optimizer has
// not declared its settings.
using NamedSettings = std::vector<std::pair<std::string, ParamSettings>>;

// The settings that the optimizer has declared.
NamedSettings named_settings(const Engine& engine);

// Returns a warning if the index of a checkpoint has other settings; otherwise "". The warning
// names the first difference and the number of parameters that differ. Parameters that were frozen
// then or are frozen now do not count. Throws Error(bad_data) for an index with settings that are
// not numbers.
std::string other_settings(const nlohmann::json& index, const NamedSettings& settings,
                           const std::filesystem::path& file);

// Returns the kind of the optimizer; "own" if the caller brings its own.
std::string_view kind_of(const Optimizer* optimizer);

// Returns the index without the digests of the files.
nlohmann::json describe(Engine& engine, const Optimizer* optimizer,
                        const std::map<std::string, std::string>& extra);

// Throws Error(invalid_argument) unless `optimizer` is the engine's, or neither exists.
void check_optimizer(std::string_view call, Engine& engine, const Optimizer* optimizer);

}  // namespace atoll_v1::atoll::fsdp

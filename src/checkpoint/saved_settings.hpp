// The settings of the optimizer for each parameter, in the index of a checkpoint.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "atoll/optimizer.hpp"

namespace atoll_v1::atoll::fsdp {

// The settings of each trainable parameter, with its name, "UNIT.PARAM"; empty if the optimizer has
// not declared its settings.
using NamedSettings = std::vector<std::pair<std::string, ParamSettings>>;

// Returns the settings by name; null if there are none.
nlohmann::json describe_settings(const NamedSettings& settings);

// Returns a warning if the index of a checkpoint has other settings; otherwise "". The warning
// names the first difference and the number of parameters that differ. Parameters that were frozen
// then or are frozen now do not count. Throws Error(bad_data) for an index with settings that are
// not numbers.
std::string other_settings(const nlohmann::json& index, const NamedSettings& settings,
                           const std::filesystem::path& file);

}  // namespace atoll_v1::atoll::fsdp

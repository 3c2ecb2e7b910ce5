// The settings of the optimizer for each parameter, in the index of a checkpoint.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "fsdp/setup.hpp"

namespace atoll_v1::atoll::fsdp {

// Returns the settings of each trainable parameter by name, "UNIT.PARAM"; null if the optimizer has
// not declared its settings.
nlohmann::json describe_settings(const EngineSetup& setup);

// Logs a warning if the index of a checkpoint has other settings than the engine. The warning names
// the first difference and the number of parameters that differ. Only the engine's lowest rank
// logs. Parameters that were frozen then or are frozen now do not count. Throws Error(bad_data) for
// an index with settings that are not numbers.
void warn_of_other_settings(const nlohmann::json& index, const EngineSetup& setup,
                            const std::filesystem::path& file);

}  // namespace atoll_v1::atoll::fsdp

// The warnings of a run and its report.html. Only rank 0 calls these functions.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace train {

// Logs the known traps that the settings show before the first step. `args` is what run_args.json
// holds. The findings of the mesh are left out, because they have been logged.
void warn_of_settings(const nlohmann::json& args);

// Logs the known traps that the figures of the run show, and writes report.html into its folder. A
// failure is a warning, because it must not fail a run that has trained.
void report_run(const std::filesystem::path& out) noexcept;

}  // namespace train

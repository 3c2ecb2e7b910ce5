// Reads JSON files.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace plan {

// Returns the JSON object in a file. Throws Error(io) for a file that cannot be opened, and
// Error(bad_data) for one without an object.
nlohmann::json read_object(const std::filesystem::path& file);

}  // namespace plan

// Reads JSON files, and texts whose letters may be large or small.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace plan {

// Returns the text with small letters (ASCII).
std::string lower(std::string_view text);

// Returns the JSON object in a file. Throws Error(io) for a file that cannot be opened, and
// Error(bad_data) for one without an object.
nlohmann::json read_object(const std::filesystem::path& file);

}  // namespace plan

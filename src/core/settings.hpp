// Reads files of settings, and checks settings that a program has written to Config directly.
#pragma once

#include <string>
#include <string_view>

#include "atoll/config.hpp"

namespace atoll_v1::atoll {

// Returns the content of the file that `setting`, for example "ATOLL_CONFIG", names. Never blocks:
// the file must be a regular file of at most 1 MiB. Throws Error(not_found), or Error(io) for
// another kind of file; the message begins with the setting and the path.
std::string read_settings_file(std::string_view setting, const std::string& path);

// Throws Error(invalid_argument), which names the member, if Config::set() refuses its value.
void require_valid(const Config& config);

}  // namespace atoll_v1::atoll

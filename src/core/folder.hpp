// Reads and deletes folders. The functions of std::filesystem that do this allocate memory in
// noexcept functions of libstdc++, so they end the process if memory runs out. The functions below
// throw instead.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Returns the names in a folder in no particular order, without "." and "..". The first form throws
// std::filesystem::filesystem_error. The second form sets `problem`, and then returns the names
// that it could read.
std::vector<std::string> names_in(const std::filesystem::path& folder);
std::vector<std::string> names_in(const std::filesystem::path& folder, std::error_code& problem);

// Deletes a file, or a folder with all that it contains, and follows no links. Nothing happens if
// `path` does not exist. Throws std::filesystem::filesystem_error.
void remove_tree(const std::filesystem::path& path);

}  // namespace atoll_v1::atoll

// Reading untrusted files: whole, into memory, never more than a stated bound.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace train {

// The bytes of a regular file. Throws Error: not_found when nothing is there, bad_data when it is
// empty or has more than `limit` bytes, io when it cannot be read.
std::string read_file(const std::filesystem::path& path, std::uintmax_t limit);

}  // namespace train

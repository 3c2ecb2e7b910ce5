// Reads untrusted files into memory, up to a size limit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace train {

// Returns the bytes of a regular file. Throws Error: not_found if it does not exist, bad_data if it
// is empty or larger than `limit` bytes, io if reading fails.
std::string read_file(const std::filesystem::path& path, std::uintmax_t limit);

}  // namespace train

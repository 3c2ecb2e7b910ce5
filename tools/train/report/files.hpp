// The files of a run. Only rank 0 writes.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace train {

// `out` when it is given, else results/training/<run_name>. Throws Error(invalid_argument) for a
// run name that is not one plain folder name.
std::filesystem::path run_directory(const std::string& out, const std::string& run_name);

// Makes the directory and those above it; throws Error(io) with the reason.
void make_directory(const std::filesystem::path& directory);

// A reader sees the old file or the new one, also when this process dies at any point: written
// beside it, flushed to the disk, renamed. Throws Error(io); then the old file stands.
void write_file_atomic(const std::filesystem::path& file, std::string_view bytes);

// Whether write_file_atomic() has what it needs; leaves nothing behind. Throws Error(io).
void check_writable(const std::filesystem::path& file);

// write_file_atomic of the indented text. Bytes that are not UTF-8 are replaced.
void write_json_atomic(const std::filesystem::path& file, const nlohmann::json& value);

}  // namespace train

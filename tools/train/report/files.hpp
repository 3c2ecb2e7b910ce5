// Files of a run, which only rank 0 writes.
#pragma once

#include <chrono>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace train {

// Returns `out` unless it is empty, otherwise results/training/<run_name>. Throws
// Error(invalid_argument) if the run name is not a single folder name.
std::filesystem::path run_directory(const std::string& out, const std::string& run_name);

// Creates the directory and its parents. Throws Error(io) with the reason.
void make_directory(const std::filesystem::path& directory);

// Replaces the file atomically: writes a temporary file, flushes it to disk and renames it. Readers
// see the old or the new file, even after a crash. Follows links. Throws Error(io) and leaves the
// old file, for example if it is a device.
void write_file_atomic(const std::filesystem::path& file, std::string_view bytes);

// Throws Error(io) if write_file_atomic() could not write this file once make_directory() has made
// its folder. Leaves nothing behind.
void check_writable(const std::filesystem::path& file);

// Whether the program may overwrite a file: it does not exist, is empty, or begins with `start`, as
// the program's own files do. write_file_atomic() also refuses what is not a regular file.
bool may_replace(const std::filesystem::path& file, std::string_view start);

// Throws Error(io) if files could not be written in this folder, or if it does not exist and could
// not be created. Changes nothing.
void check_folder(const std::filesystem::path& folder);

// Returns the names in a folder, in no order; none if it does not exist. Throws Error(io).
std::vector<std::string> names_in(const std::filesystem::path& folder);

// Names this process among those of all hosts and containers that share a file system, for the
// names of temporary files: HOST-CONTAINER-PID in the digits 0 to 9 and a to f. The tag is the PID
// alone if the boot id or the PID namespace cannot be read. atoll-data uses the same names for its
// temporary files.
std::string process_tag();

// Whether a file, or a folder and its direct entries, were last modified more than `time` ago;
// false if that cannot be read.
bool is_unchanged(const std::filesystem::path& path, std::chrono::minutes time);

// Writes indented JSON atomically. Invalid UTF-8 is replaced.
void write_json_atomic(const std::filesystem::path& file, const nlohmann::json& value);

}  // namespace train

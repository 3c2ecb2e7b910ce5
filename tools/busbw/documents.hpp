// The files that a run leaves, as JSON; their forms are in README.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "job.hpp"
#include "options.hpp"
#include "pairs.hpp"
#include "sweep.hpp"

namespace busbw {

struct CommandLine {
  std::vector<std::string> arguments;
  std::string start_time;  // "2026-01-31 12:00:00"
};

// --json: what nccl-tests writes for -J (version 3), and more beside it.
std::string to_json(const CommandLine& command, const Job& job, const Options& options,
                    std::span<const Table> tables);
std::string to_json(const CommandLine& command, const Job& job, const Options& options,
                    const PairReport& report);
// --save: the measured curve.
std::string to_curve(const Job& job, const Options& options, std::span<const Table> tables);

// Whether rank 0 will be able to write it. Error(io).
void require_writable(const std::string& path);
// Replaces the file. Error(io) that names it.
void write_file(const std::string& path, const std::string& text);

}  // namespace busbw

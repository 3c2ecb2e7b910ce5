// Output files as JSON, whose forms README.md describes, and the page of --plot.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/finding.hpp"
#include "job.hpp"
#include "options.hpp"
#include "sweep.hpp"
#include "verdict.hpp"

namespace busbw {

struct CommandLine {
  std::vector<std::string> arguments;
  std::string start_time;  // local time, such as "2026-01-31 12:00:00"
};

// Content of --json: the form of nccl-tests' -J (version 3) with additional members.
std::string to_json(const CommandLine& command, const Job& job, const Options& options,
                    std::span<const Table> tables, std::span<const atoll::Finding> ports);
std::string to_json(const CommandLine& command, const Job& job, const Options& options,
                    const PairReport& report, std::span<const atoll::Finding> ports);
// Content of --save: the measured curve.
std::string to_curve(const Job& job, const Options& options, std::span<const Table> tables);
// Content of --plot: a page for a browser with a curve for each collective, type, reduction, root
// and place, and its limit where that is known. Points below the share `target` of it are faint.
std::string to_page(std::span<const Table> tables, std::optional<double> target);

// Checks that rank 0 can write the file. Throws Error(io).
void require_writable(const std::string& path);
// Replaces the file. Throws Error(io) that names it.
void write_file(const std::string& path, const std::string& text);

}  // namespace busbw

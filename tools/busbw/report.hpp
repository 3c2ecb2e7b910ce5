// Report in the layout of nccl-tests 2.18, so that programs that read nccl-tests can read it.
// Everything that nccl-tests does not print is a comment line between the footer and the end. These
// lines avoid the words by which readers find table and footer. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/finding.hpp"
#include "collective.hpp"
#include "limit.hpp"

namespace busbw {

// Statistics of the times of single operations, in microseconds.
struct LatencySummary {
  double min = 0, max = 0, mean = 0, p50 = 0, p95 = 0, p99 = 0, deviation = 0;
  double cv_percent() const noexcept { return mean > 0 ? deviation / mean * 100 : 0; }
};
// Computes percentiles by nearest rank. `times` must not be empty.
LatencySummary summarize(std::vector<double> times);

// One half of a row: the out-of-place or the in-place measurement.
struct Half {
  // Time per operation in microseconds; -a selects the rank, or the average.
  double time_us = 0;
  double cpu_us = 0;                   // part of time_us in which the CPU enqueues
  double algbw = 0;                    // algorithm bandwidth in GB/s
  double busbw = 0;                    // bus bandwidth in GB/s
  std::optional<std::uint64_t> wrong;  // wrong elements over all ranks; empty if unchecked
  Ceiling limit = {};
  std::optional<LatencySummary> latency = {};
  std::vector<std::vector<double>> times_us = {};  // with -I: times of single operations, by rank

  // Percent of the limit; empty if there is no limit.
  std::optional<double> percent() const noexcept;
};

struct Row {
  Collective collective = Collective::all_reduce;
  std::uint64_t bytes = 0;  // value of the `size` column
  std::uint64_t count = 0;
  atoll::DType dtype = atoll::DType::f32;
  Op op = Op::none;
  int root = -1;
  int ranks = 1;  // number of ranks in a group
  Half out = {}, in = {};
  std::string timestamp = {};

  const Half& half(Place place) const noexcept { return place == Place::out ? out : in; }
};

// Options that change the layout of the table.
struct Layout {
  bool latency = false;     // -I: four more columns in each half
  bool cpu_time = false;    // -C: time to enqueue instead of duration
  bool timestamps = false;  // -S: time of day of each row
};

std::string header_lines(const Layout& layout);
std::string row_line(const Row& row, const Layout& layout);

struct Verdict {
  int wrong_rows = 0;  // number of halves with wrong elements
  double average_busbw = 0;
  std::optional<double> wanted_busbw;  // least average bandwidth, set by NCCL_TESTS_MIN_BW
  bool is_bandwidth_fine() const noexcept;
};
Verdict judge(std::span<const Row> rows, std::optional<double> wanted_busbw);
std::string footer_lines(const Verdict& verdict);

// Returns lines that state, for each row, the share of the limit that it reached and what sets the
// limit; with -I also the median and 99th percentile of the times.
std::string limit_lines(std::span<const Row> rows, const Layout& layout);

// Counts the halves that are below `share` of their limit, with a comment line for each. Halves
// without a limit are not judged.
struct Expectation {
  int below = 0;
  int judged = 0;
  std::string text;
};
Expectation expect(std::span<const Row> rows, double share);

// Returns a comment line for each finding about a network port.
std::string port_lines(std::span<const atoll::Finding> findings);

// Formats a number in at most `width` characters, as nccl-tests does: "1234.50", but "123456.1"
// becomes "123456".
std::string short_number(double value, int width);
// The local time: "2026-01-31 12:00:00".
std::string local_time();
// Formats bytes for people: "1 MiB" for 1,048,576.
std::string human_bytes(std::uint64_t bytes);

}  // namespace busbw

// The report in the layout of nccl-tests 2.18, so that what reads that reads this. Everything that
// nccl-tests does not print is a comment line outside the table, between the footer and the end,
// without the words by which readers find table and footer. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collective.hpp"
#include "limit.hpp"

namespace busbw {

// Times of single operations, in microseconds.
struct LatencySummary {
  double min = 0, max = 0, mean = 0, p50 = 0, p95 = 0, p99 = 0, deviation = 0;
  double cv_percent() const noexcept { return mean > 0 ? deviation / mean * 100 : 0; }
};
// Percentiles by nearest rank; `times` is not empty.
LatencySummary summarize(std::vector<double> times);

// One half of a row.
struct Half {
  double time_us = 0;                  // of one operation, by -a
  double cpu_us = 0;                   // the share of it that the host spent to enqueue
  double algbw = 0;                    // GB/s
  double busbw = 0;                    // GB/s
  std::optional<std::uint64_t> wrong;  // elements, over all ranks; empty: not checked
  Ceiling limit = {};
  std::optional<LatencySummary> latency = {};
  std::vector<std::vector<double>> times_us = {};  // with -I: single operations, by rank

  // Of the limit; empty when none is known.
  std::optional<double> percent() const noexcept;
};

struct Row {
  Collective collective = Collective::all_reduce;
  std::uint64_t bytes = 0;  // the `size` column
  std::uint64_t count = 0;
  atoll::DType dtype = atoll::DType::f32;
  Op op = Op::none;
  int root = -1;
  int ranks = 1;  // of a group
  Half out = {}, in = {};
  std::string timestamp = {};

  const Half& half(Place place) const noexcept { return place == Place::out ? out : in; }
};

// What changes the layout.
struct Layout {
  bool latency = false;     // -I: four more columns a half
  bool cpu_time = false;    // -C
  bool timestamps = false;  // -S
};

std::string header_lines(const Layout& layout);
std::string row_line(const Row& row, const Layout& layout);

struct Verdict {
  int wrong_rows = 0;  // halves with wrong elements
  double average_busbw = 0;
  std::optional<double> wanted_busbw;  // NCCL_TESTS_MIN_BW
  bool is_bandwidth_fine() const noexcept;
};
Verdict judge(std::span<const Row> rows, std::optional<double> wanted_busbw);
std::string footer_lines(const Verdict& verdict);

// The share of the limit, and what limits; with latencies their median and 99th percentile.
std::string limit_lines(std::span<const Row> rows, const Layout& layout);

// Which halves stay below `share` of their limit, one comment line each, and the sum of it; halves
// without a limit are not judged.
struct Expectation {
  int below = 0;
  int judged = 0;
  std::string text;
};
Expectation expect(std::span<const Row> rows, double share);

// At most `width` characters, as nccl-tests shortens: "1234.50", "123456.1" -> "123456".
std::string short_number(double value, int width);
// The local time: "2026-01-31 12:00:00".
std::string local_time();
// "1048576", "1 MiB": for people.
std::string human_bytes(std::uint64_t bytes);

}  // namespace busbw

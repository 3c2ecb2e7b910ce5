// The progress line: rewritten in place on a terminal, one line per N steps elsewhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "report/metrics.hpp"

namespace train {

// Formats a duration: "2:03", or "1:02:03" from one hour on.
std::string clock_time(double seconds);

// Formats one step, leaving out unknown figures and totals of 0. `bad` counts the steps so far that
// were not finite, `left_s` is the time until the last step. For example, on one line:
// step 120/400 (2:03 left)  loss 1.2345  lr 2.00e-04  12.3k tok/s (+64.1k padded)  MFU 31.2 %  comm
// 30.1 ms exposed 4.200 ms (3.1 %)
std::string progress_line(const StepRecord& step, std::int64_t total_steps, const Speed& speed,
                          const BadSteps& bad = {}, std::optional<double> left_s = {});

// Formats the mean step. For example, on one line:
// per step: compute 120.0 ms, communication 30.1 ms, exposed 4.200 ms (worst rank 5.100 ms),
// between steps 2.500 ms, 1.310 MB over replicate, 12.300 MB over shard
std::string summary_line(const Speed& speed);

enum class Surface {
  terminal,  // rewrites one line, at most 5 times a second
  log,       // writes a line for the first, last and every N-th step
  silent,
};

struct ProgressOptions {
  Surface surface = Surface::log;
  std::int64_t total_steps = 0;
  std::int64_t every = 10;   // steps between lines of Surface::log
  std::size_t columns = 80;  // terminal width; a longer line would wrap and could not be rewritten
};

// Selects Surface::terminal and its width if `stream` is a terminal, otherwise Surface::log.
ProgressOptions progress_options_for(std::FILE* stream);

// Decides when to write the line. The caller supplies the time, so tests need not sleep.
class ProgressPacer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ProgressPacer(const ProgressOptions& options) : options_(options) {}

  // Returns the bytes to write now, if any.
  std::optional<std::string> step(const StepRecord& step, const Speed& speed, Clock::time_point now,
                                  const BadSteps& bad = {});

  // Returns the newest line, unless it was shown, and ends the terminal's line. Call before writing
  // other messages.
  std::string finish();

 private:
  std::string shown(const std::string& line) const;
  std::optional<double> seconds_left(std::int64_t step, Clock::time_point now);

  ProgressOptions options_;
  std::optional<Clock::time_point> last_;
  // End of the first step. The time since then, with evaluations and saves, gives the time left.
  std::optional<Clock::time_point> began_;
  std::int64_t first_step_ = 0;
  std::string pending_;     // newest line, if it was not shown
  bool line_open_ = false;  // the terminal's line has no newline yet
};

// Writes the lines that ProgressPacer returns to a stream. The destructor ends the line.
class Progress {
 public:
  Progress(std::FILE* stream, const ProgressOptions& options) : stream_(stream), pacer_(options) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { finish(); }

  void step(const StepRecord& step, const Speed& speed, const BadSteps& bad = {});
  void finish() { write(pacer_.finish()); }

 private:
  void write(const std::string& bytes);

  std::FILE* stream_;  // must outlive this object, which does not close it
  ProgressPacer pacer_;
};

}  // namespace train

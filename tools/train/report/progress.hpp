// The line that a person watches: rewritten in place on a terminal, one line per N steps elsewhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "report/metrics.hpp"

namespace train {

// step 120/400  loss 1.2345  lr 2.00e-04  12.3k tok/s (+64.1k padded)  MFU 31.2 %  comm 30.1 ms
// exposed 4.200 ms (3.1 %)
// `total_steps` 0 leaves the total out; figures that are not known are left out.
std::string progress_line(const StepRecord& step, std::int64_t total_steps, const Speed& speed);

// a step: compute 120.0 ms, communication 30.1 ms, exposed 4.200 ms (worst rank 5.100 ms), 1.310 MB
// over replicate, 12.300 MB over shard
std::string summary_line(const Speed& speed);

enum class Surface {
  terminal,  // one line, at most 5 times a second
  log,       // a line for the first, the last and every N-th step
  silent,
};

struct ProgressOptions {
  Surface surface = Surface::log;
  std::int64_t total_steps = 0;
  std::int64_t every = 10;   // steps, for Surface::log
  std::size_t columns = 80;  // of the terminal; a longer line would wrap and never be overwritten
};

// terminal when `stream` is one, with its width, else log.
ProgressOptions progress_options_for(std::FILE* stream);

// Decides what to write and when; the caller's clock, so tests need no sleep.
class ProgressPacer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ProgressPacer(const ProgressOptions& options) : options_(options) {}

  // The bytes to write now, if any.
  std::optional<std::string> step(const StepRecord& step, const Speed& speed,
                                  Clock::time_point now);

  // The last line, if it has not been shown, and the end of a terminal's line. A message for the
  // user between steps is written after this.
  std::string finish();

 private:
  std::string shown(const std::string& line) const;

  ProgressOptions options_;
  std::optional<Clock::time_point> last_;
  std::string pending_;     // the newest line, not yet shown
  bool line_open_ = false;  // the cursor stands at the end of a line on the terminal
  bool started_ = false;
};

// The pacer on a stream. Ends its line in the destructor.
class Progress {
 public:
  Progress(std::FILE* stream, const ProgressOptions& options) : stream_(stream), pacer_(options) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void step(const StepRecord& step, const Speed& speed);
  void finish();

 private:
  void write(const std::string& bytes);

  std::FILE* stream_;  // not owned
  ProgressPacer pacer_;
};

}  // namespace train

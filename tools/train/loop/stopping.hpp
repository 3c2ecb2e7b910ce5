// Ends a run before --steps: after a signal, or before the time limit of the job.
#pragma once

#include <cstdint>
#include <string>

#include "loop/clock.hpp"
#include "loop/options.hpp"

namespace train {

// Why a run ends before --steps. Ranks exchange the number, and the largest one applies.
enum class Stop {
  none = 0,
  signal = 1,  // SIGTERM, SIGINT or SIGUSR1
  time = 2     // the limit of --max-time
};

// The exit code of a run that has saved a checkpoint and stopped before --steps.
inline constexpr int exit_saved_and_stopped = 75;

// Lets SIGTERM, SIGINT and SIGUSR1 stop the run after the current step. A second SIGTERM or SIGINT
// ends the process. A SIGINT that the process ignores stays ignored.
// The handler that SIGUSR1 has, such as that of the flight recorder, is called as well.
void stop_on_signals();

// Whether a signal has come, or request_stop() was called since the last forget_stop().
bool stop_requested() noexcept;
void request_stop() noexcept;
void forget_stop() noexcept;

// Reads a duration such as "3h30m", "45m", "1d12h" or "90s"; a number alone is seconds. Throws
// Error(invalid_argument) that names the flag.
double parse_duration(const char* flag, const std::string& text);

// Decides whether a rank must stop now to keep --max-time.
class TimeLimit {
 public:
  // `seconds` is the limit; 0 means none. `save_seconds` is a guess of how long a save takes.
  TimeLimit(double seconds, double save_seconds) : limit_(seconds), save_(save_seconds) {}

  // Notes how long a step took, with everything that followed it. `saving` seconds of it were
  // saves. They do not count here, because reached() adds the time of a save.
  void add_step(double seconds, double saving = 0) noexcept;
  void add_save(double seconds) noexcept { save_ = seconds; }
  // Whether the next step and a save may end after the limit.
  bool reached(double elapsed) const noexcept;

 private:
  double limit_;
  double save_;
  double longest_step_ = 0;
};

// Ends a run early. --max-time counts from the construction.
class Stopping {
 public:
  // `options` must outlive this object.
  explicit Stopping(const RunOptions& options) : options_(options) {}

  // Sets the limit of --max-time; `save_seconds` is a guess of how long a save takes.
  void set_limit(double save_seconds);
  TimeLimit& limit() noexcept { return limit_; }
  // Why this rank wants to end the run after this step.
  Stop wanted() const;

  // Whether, and why, all ranks stop after this step.
  Stop decided() const noexcept { return decided_; }
  void decide(Stop stop) noexcept { decided_ = stop; }
  // Why the run ended after `done` steps, before --steps; "" if it did not.
  std::string reason(std::int64_t done) const;

  // Rank 0 logs how to resume after a stop. Without checkpoints none can: throws Error(aborted).
  void log_reason(std::int64_t done, int rank) const;
  // Logs that mpirun kills ranks before they have saved, if a step takes too long for it: Open
  // MPI's mpirun kills them a second after it has passed on SIGTERM or Ctrl-C, unless told
  // otherwise.
  void log_signals(double step_seconds) const;

 private:
  const RunOptions& options_;
  Clock::time_point started_ = Clock::now();
  TimeLimit limit_{0, 0};
  Stop decided_ = Stop::none;
};

}  // namespace train

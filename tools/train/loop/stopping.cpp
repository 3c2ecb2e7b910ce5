#include "loop/stopping.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <csignal>
#include <string_view>
#include <utility>

#include "environment.hpp"
#include "fail.hpp"
#include "report/log.hpp"

namespace train {
namespace {

// Signal handlers can reach only globals.
std::atomic<bool> requested{false};
struct sigaction earlier_usr1 {};

static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void stop_after_step(int signal) {
  requested = true;
  if (signal != SIGUSR1 || (earlier_usr1.sa_flags & SA_SIGINFO) != 0) return;
  if (earlier_usr1.sa_handler != SIG_DFL && earlier_usr1.sa_handler != SIG_IGN) {
    earlier_usr1.sa_handler(signal);
  }
}

// Seconds of a unit of time; 0 for an unknown one.
double seconds_of(char unit) {
  constexpr std::pair<char, double> units[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};
  for (const auto& [name, seconds] : units) {
    if (name == unit) return seconds;
  }
  return 0;
}

}  // namespace

void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = stop_after_step;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, &earlier_usr1);
  // The default action comes back, so that a second signal ends a job that hangs.
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  ::sigaction(SIGTERM, &action, nullptr);
  // A shell lets its background jobs ignore Ctrl-C, so an ignored SIGINT stays ignored.
  struct sigaction interrupt {};
  if (::sigaction(SIGINT, nullptr, &interrupt) != 0 || interrupt.sa_handler == SIG_IGN) return;
  ::sigaction(SIGINT, &action, nullptr);
}

bool stop_requested() noexcept { return requested; }
void request_stop() noexcept { requested = true; }
void forget_stop() noexcept { requested = false; }

double parse_duration(const char* flag, const std::string& text) {
  double total = 0;
  std::string_view rest = text;
  bool fine = !rest.empty();
  while (fine && !rest.empty()) {
    double number = 0;
    const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    fine = parsed.ec == std::errc() && std::isfinite(number) && number >= 0;
    if (!fine) break;
    rest.remove_prefix(static_cast<std::size_t>(parsed.ptr - rest.data()));
    const bool alone = rest.empty() && total == 0;
    const double unit = alone ? 1 : rest.empty() ? 0 : seconds_of(rest.front());
    fine = unit > 0;
    total += number * unit;
    if (!rest.empty()) rest.remove_prefix(1);
  }
  require(fine && total > 0, "{} {}: use a duration such as 3h30m, 45m or 90s", flag, text);
  return total;
}

void TimeLimit::add_step(double seconds, double saving) noexcept {
  longest_step_ = std::max(longest_step_, seconds - saving);
}

bool TimeLimit::reached(double elapsed) const noexcept {
  // The durations of saves vary more than those of steps, because file systems are shared.
  constexpr double margin = 1.5;
  return limit_ > 0 && elapsed + longest_step_ + margin * save_ >= limit_;
}

void Stopping::set_limit(double save_seconds) {
  if (options_.max_time.empty()) return;
  limit_ = {parse_duration("--max-time", options_.max_time), save_seconds};
}

Stop Stopping::wanted() const {
  if (stop_requested()) return Stop::signal;
  return limit_.reached(seconds_since(started_)) ? Stop::time : Stop::none;
}

std::string Stopping::reason(std::int64_t done) const {
  if (decided_ == Stop::none) return "";
  return fmt::format("{} has ended the run after step {}",
                     decided_ == Stop::time ? "--max-time " + options_.max_time : "a signal", done);
}

void Stopping::log_reason(std::int64_t done, int rank) const {
  if (decided_ == Stop::none) return;
  if (!options_.save_checkpoint) {
    fail(ErrorCode::aborted, "{}, and --no-checkpoint saves nothing", reason(done));
  }
  if (rank != 0) return;
  log::info(
      "{}, which is saved: start it again with --resume auto{}", reason(done),
      options_.export_weights.empty() ? "" : "; --export writes the model when all steps are done");
}

void Stopping::log_signals(double step_seconds) const {
  constexpr double most_seconds = 0.5;  // longest step that leaves time for a save after it
  const bool by_mpirun = !variable("OMPI_COMM_WORLD_RANK").empty();
  const bool waits = !variable("OMPI_MCA_odls_base_sigkill_timeout").empty();
  if (!by_mpirun || waits || !options_.save_checkpoint || step_seconds < most_seconds) return;
  log::info(
      "a step takes {:.1f} s, but mpirun kills ranks 1 s after Ctrl-C or SIGTERM, before they have "
      "saved: send SIGUSR1 to stop, or start with --mca odls_base_sigkill_timeout 600",
      step_seconds);
}

}  // namespace train

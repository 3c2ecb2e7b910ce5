#include "report/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string_view>
#include <utility>

namespace train {
namespace {

constexpr std::chrono::milliseconds terminal_interval{200};
// In a log, a step that ends this long after the last line gets a line, whatever `every` is.
constexpr std::chrono::seconds log_interval{30};
constexpr std::string_view erase_line = "\r\x1b[K";

std::string count(double value) {
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

std::string duration(double seconds) {
  if (seconds >= 10) return fmt::format("{:.1f} s", seconds);
  return seconds >= 0.01 ? fmt::format("{:.1f} ms", 1e3 * seconds)
                         : fmt::format("{:.3f} ms", 1e3 * seconds);
}

}  // namespace

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string progress_line(const StepRecord& step, std::int64_t total_steps, const Speed& speed,
                          const BadSteps& bad, std::optional<double> left_s) {
  std::string line = total_steps > 0 ? fmt::format("step {}/{}", step.step, total_steps)
                                     : fmt::format("step {}", step.step);
  if (left_s) line += fmt::format(" ({} left)", clock_time(*left_s));
  line += fmt::format("  loss {:.4f}", step.loss);
  if (step.eval_loss) line += fmt::format("  eval {:.4f}", *step.eval_loss);
  if (step.eval_loss_average) line += fmt::format(" (average {:.4f})", *step.eval_loss_average);
  line += fmt::format("  lr {:.2e}", step.learning_rate);
  if (speed.tokens_per_s) line += fmt::format("  {} tok/s", count(*speed.tokens_per_s));
  if (speed.padded_tokens_per_s && *speed.padded_tokens_per_s > 0) {
    line += fmt::format(" (+{} padded)", count(*speed.padded_tokens_per_s));
  }
  if (speed.mfu) line += fmt::format("  MFU {:.1f} %", 100 * *speed.mfu);
  if (speed.communication_s) line += fmt::format("  comm {}", duration(*speed.communication_s));
  if (speed.exposed_s && speed.exposed_comm_fraction) {
    line += fmt::format("  exposed {} ({:.1f} %)", duration(*speed.exposed_s),
                        100 * *speed.exposed_comm_fraction);
  }
  if (bad.skipped > 0) line += fmt::format("  skipped {}", bad.skipped);
  if (bad.nonfinite > bad.skipped) line += fmt::format("  not finite {}", bad.nonfinite);
  return line;
}

std::string summary_line(const Speed& speed) {
  const auto time = [](std::optional<double> seconds) {
    return seconds ? duration(*seconds) : std::string("-");
  };
  std::string line = fmt::format(
      "per step: compute {}, communication {}, exposed {} (worst rank {})", time(speed.compute_s),
      time(speed.communication_s), time(speed.exposed_s), time(speed.exposed_worst_s));
  if (speed.between_steps_s) line += fmt::format(", between steps {}", time(speed.between_steps_s));
  for (const auto& [axis, bytes] : speed.axis_bytes) {
    line += fmt::format(", {:.3f} MB over {}", bytes / 1e6, axis);
  }
  return line;
}

ProgressOptions progress_options_for(std::FILE* stream) {
  ProgressOptions options;
  const int fd = ::fileno(stream);
  if (fd < 0 || ::isatty(fd) == 0) return options;
  options.surface = Surface::terminal;
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) options.columns = size.ws_col;
  return options;
}

// Formats a line for a terminal or a log.
std::string ProgressPacer::shown(const std::string& line) const {
  if (options_.surface != Surface::terminal) return line + "\n";
  const std::size_t width = options_.columns > 1 ? options_.columns - 1 : 1;
  // Cuts between figures, which two spaces separate: a cut number would look like another number.
  const std::size_t end = line.size() <= width ? line.npos : line.rfind("  ", width);
  return std::string(erase_line) + line.substr(0, end == line.npos ? width : end);
}

// Returns nothing before two steps have ended, and after the last step.
std::optional<double> ProgressPacer::seconds_left(std::int64_t step, Clock::time_point now) {
  if (!began_) {
    began_ = now;
    first_step_ = step;
  }
  const double passed = std::chrono::duration<double>(now - *began_).count();
  if (step <= first_step_ || step >= options_.total_steps || !(passed > 0)) return std::nullopt;
  return passed / static_cast<double>(step - first_step_) *
         static_cast<double>(options_.total_steps - step);
}

std::optional<std::string> ProgressPacer::step(const StepRecord& step, const Speed& speed,
                                               Clock::time_point now, const BadSteps& bad) {
  if (options_.surface == Surface::silent) return std::nullopt;
  pending_ = progress_line(step, options_.total_steps, speed, bad, seconds_left(step.step, now));
  const bool terminal = options_.surface == Surface::terminal;
  const bool ends = options_.total_steps > 0 && step.step >= options_.total_steps;
  // A step with an evaluation always gets a line, which stays on the terminal.
  const bool stays = step.eval_loss.has_value();
  const bool due = !last_ || ends || stays ||
                   (terminal ? now - *last_ >= terminal_interval
                             : options_.every <= 1 || step.step % options_.every == 0 ||
                                   now - *last_ >= log_interval);
  if (!due) return std::nullopt;
  last_ = now;
  line_open_ = terminal && !stays;
  return shown(std::exchange(pending_, {})) + (terminal && stays ? "\n" : "");
}

std::string ProgressPacer::finish() {
  std::string bytes;
  if (!pending_.empty()) {
    bytes = shown(std::exchange(pending_, {}));
    line_open_ = options_.surface == Surface::terminal;
  }
  if (std::exchange(line_open_, false)) bytes += "\n";
  return bytes;
}

void Progress::write(const std::string& bytes) {
  if (bytes.empty()) return;
  // Ignore errors: a closed terminal must not stop the training run.
  (void)std::fwrite(bytes.data(), 1, bytes.size(), stream_);
  (void)std::fflush(stream_);
}

void Progress::step(const StepRecord& step, const Speed& speed, const BadSteps& bad) {
  const auto bytes = pacer_.step(step, speed, ProgressPacer::Clock::now(), bad);
  if (bytes) write(*bytes);
}

}  // namespace train

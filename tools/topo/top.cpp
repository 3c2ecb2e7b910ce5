#include "top.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/observer.hpp"
#include "top_report.hpp"

namespace topo {
namespace {

constexpr int exit_ended = 0;
constexpr int exit_failed = 1;

std::string token_of(const TopOptions& options, const atoll::Config& config) {
  if (options.token_file.empty()) return config.token;
  std::ifstream file(options.token_file);
  std::string token;
  if (!std::getline(file, token) || token.empty())
    throw atoll::Error(
        atoll::ErrorCode::io,
        fmt::format("{}: cannot read the token from its first line", options.token_file));
  return token;
}

// Standard output. On a terminal each text replaces the last one; other output gets one text after
// the other.
class Screen {
 public:
  explicit Screen(bool in_place) : in_place_(in_place) {
    if (in_place_) put("\x1b[?1049h\x1b[?25l");  // the second screen of the terminal, no cursor
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen() {
    if (in_place_) put("\x1b[?25h\x1b[?1049l");
  }
  void show(const std::string& text) const { put(in_place_ ? "\x1b[H\x1b[2J" + text : text); }
  // Returns the largest size of a text that fits the terminal.
  Limits limits() const {
    winsize size{};
    if (!in_place_ || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return {};
    return {size.ws_row, size.ws_col};
  }

 private:
  static void put(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  bool in_place_;
};

// While a Pause exists, SIGINT and SIGTERM only end wait(), so that the program restores the
// terminal before it ends.
class Pause {
 public:
  Pause() {
    ::sigemptyset(&signals_);
    ::sigaddset(&signals_, SIGINT);
    ::sigaddset(&signals_, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &signals_, nullptr);
  }
  // Waits for `seconds`. Returns false if a signal has arrived.
  bool wait(double seconds) const {
    const auto whole = static_cast<time_t>(seconds);
    const timespec time{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
    return ::sigtimedwait(&signals_, nullptr, &time) < 0;
  }

 private:
  sigset_t signals_{};
};

// Shows the job until it ends. Returns a last line with the reason for the end, or "".
std::string follow(atoll::Observer& observer, const std::string& address,
                   const TopOptions& options) {
  const bool in_place = !options.json && !options.once && ::isatty(STDOUT_FILENO) == 1;
  const Pause pause;
  const Screen screen(in_place);
  std::vector<atoll::ObservedRank> previous;
  const int count = options.once ? 1 : options.count;
  for (int shown = 0;;) {
    const auto ranks = observer.look();
    if (!ranks) return "the job has ended";
    const View view{address, *ranks, previous};
    screen.show(options.json ? json_of(view) : table_of(view, screen.limits()));
    if (++shown == count || !pause.wait(options.interval)) return {};
    previous = *ranks;
  }
}

}  // namespace

int watch(const TopOptions& options, const atoll::Config& config) {
  const std::string& address = options.address->empty() ? config.addr : *options.address;
  atoll::Observer observer(address, token_of(options, config));
  int status = exit_ended;
  std::string last;
  try {
    last = follow(observer, address, options);
  } catch (const atoll::Error& error) {
    // The observer was connected, so an error means that the job has ended.
    last = fmt::format("the job has failed: {}", error.what());
    status = exit_failed;
  }
  if (!last.empty()) fmt::print("{}\n", options.json ? json_of(last) : last);
  return status;
}

}  // namespace topo

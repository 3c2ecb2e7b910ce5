#include "top_report.hpp"

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
#include <string_view>
#include <thread>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/tooling/observer.hpp"

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

// `enter` switches a terminal to its alternate screen and hides the cursor; `restore` undoes both.
constexpr std::string_view enter = "\x1b[?1049h\x1b[?25l";
constexpr std::string_view restore = "\x1b[?25h\x1b[?1049l";

// The signal handlers end the program at once, even while it waits for the network.
extern "C" void leave(int) { ::_exit(exit_ended); }
extern "C" void leave_screen(int) {
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, restore.data(), restore.size());
  ::_exit(exit_ended);
}

// Standard output. On a terminal each text replaces the one before; otherwise texts are appended.
// SIGINT and SIGTERM restore the terminal and end the program, but never while a text is written.
class Screen {
 public:
  explicit Screen(bool in_place) : in_place_(in_place) {
    struct sigaction action {};
    action.sa_handler = in_place ? leave_screen : leave;
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
    if (in_place_) put(enter);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen() {
    if (in_place_) put(restore);
  }
  void show(const std::string& text) const { put(in_place_ ? "\x1b[H\x1b[2J" + text : text); }
  // Returns the largest size of a text that fits the terminal.
  Limits limits() const {
    winsize size{};
    if (!in_place_ || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return {};
    return {size.ws_row, size.ws_col};
  }

 private:
  static void put(std::string_view text) {
    sigset_t signals{};
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGINT);
    ::sigaddset(&signals, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  }
  bool in_place_;
};

// Shows the job until it ends. Returns a last line with the reason for the end, or "".
std::string follow(atoll::Observer& observer, const std::string& address,
                   const TopOptions& options) {
  const bool in_place = !options.json && !options.once && ::isatty(STDOUT_FILENO) == 1;
  const Screen screen(in_place);
  std::vector<atoll::ObservedRank> previous;
  const int count = options.once ? 1 : options.count;
  for (int shown = 0;;) {
    const auto ranks = observer.look();
    if (!ranks) return "the job has ended";
    const View view{address, *ranks, previous};
    screen.show(options.json ? json_of(view) : table_of(view, screen.limits()));
    if (++shown == count) return {};
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval));
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
    const bool has_failed =
        error.code() == atoll::ErrorCode::aborted || error.code() == atoll::ErrorCode::peer_lost;
    // Other errors leave open whether the job has failed: rank 0 may only be suspended.
    if (!has_failed) throw;
    last = fmt::format("the job has failed: {}", error.what());
    status = exit_failed;
  }
  if (!last.empty()) fmt::print("{}\n", options.json ? json_of(last) : last);
  return status;
}

}  // namespace topo

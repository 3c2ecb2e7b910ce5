// Turns SIGUSR1 into an event that a thread can wait for.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <thread>

#include "core/log.hpp"
#include "flight/flight.hpp"

namespace atoll_v1::atoll {
namespace {

// The signal handler reads these globals and nothing else.
struct Target {
  std::atomic<int> eventfd{-1};
  std::atomic<std::uint64_t> value{0};
};
std::array<Target, 64> targets;
std::atomic<int> handlers_running{0};

extern "C" void atoll_flight_signalled(int) {
  const int saved = errno;
  ++handlers_running;
  for (Target& target : targets) {
    const int fd = target.eventfd;
    const std::uint64_t value = target.value;
    if (fd >= 0) [[maybe_unused]]
      const ssize_t written = ::write(fd, &value, sizeof value);
  }
  --handlers_running;
  errno = saved;
}

std::mutex installing;  // guards `users`, and the handler while it is installed or removed
int users = 0;

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == atoll_flight_signalled;
}

void install() {
  struct sigaction current {};
  if (::sigaction(SIGUSR1, nullptr, &current) != 0 || is_ours(current)) return;
  if ((current.sa_flags & SA_SIGINFO) != 0 || current.sa_handler != SIG_DFL) {
    log::info("the program has its own SIGUSR1 handler: the signal will not write flight files");
    return;
  }
  struct sigaction action {};
  action.sa_handler = atoll_flight_signalled;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGUSR1, &action, nullptr);
}

void give_back() {
  struct sigaction current {};
  if (::sigaction(SIGUSR1, nullptr, &current) != 0 || !is_ours(current)) return;
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGUSR1, &action, nullptr);
}

}  // namespace

FlightSignal::FlightSignal(int eventfd, std::uint64_t value) {
  const std::lock_guard lock(installing);
  for (std::size_t i = 0; i < targets.size() && place_ < 0; ++i) {
    if (targets[i].eventfd >= 0) continue;
    targets[i].value = value;
    targets[i].eventfd = eventfd;
    place_ = static_cast<int>(i);
  }
  if (place_ >= 0 && users++ == 0) install();
}

FlightSignal::~FlightSignal() {
  if (place_ < 0) return;
  const std::lock_guard lock(installing);
  if (--users == 0) give_back();
  targets[static_cast<std::size_t>(place_)].eventfd = -1;
  // Waits for running handlers: they may have read the descriptor and still write to it.
  while (handlers_running > 0) std::this_thread::yield();
}

}  // namespace atoll_v1::atoll

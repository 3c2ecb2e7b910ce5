// Turns SIGUSR1 into an event that a thread can wait for.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <thread>

#include "core/log.hpp"
#include "flight/flight.hpp"
#include "flight/signal_targets.hpp"

namespace atoll_v1::atoll {
namespace {

// The signal handler uses this global and nothing else.
constinit SignalTargetsOf<std::atomic, 64> targets;

extern "C" void atoll_flight_signalled(int) {
  const int saved = errno;
  targets.handle([](int fd, std::uint64_t value) {
    [[maybe_unused]] const ssize_t written = ::write(fd, &value, sizeof value);
  });
  errno = saved;
}

std::mutex installing;  // guards `users`, and the handler while it is installed or removed
int users = 0;

bool is_flight_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == atoll_flight_signalled;
}

void install() {
  struct sigaction current {};
  if (::sigaction(SIGUSR1, nullptr, &current) != 0 || is_flight_handler(current)) return;
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
  if (::sigaction(SIGUSR1, nullptr, &current) != 0 || !is_flight_handler(current)) return;
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGUSR1, &action, nullptr);
}

}  // namespace

FlightSignal::FlightSignal(int eventfd, std::uint64_t value) {
  const std::lock_guard lock(installing);
  place_ = targets.add(eventfd, value);
  if (place_ && users++ == 0) install();
}

FlightSignal::~FlightSignal() {
  if (!place_) return;
  const std::lock_guard lock(installing);
  if (--users == 0) give_back();
  targets.remove(*place_, [] { std::this_thread::yield(); });
}

}  // namespace atoll_v1::atoll

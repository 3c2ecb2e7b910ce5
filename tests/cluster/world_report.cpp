// Joins the job that a launcher started, passes a barrier with the other ranks, and prints one line
// about this rank. With `--fail R`, rank R kills itself after the first barrier, and the other
// ranks print the reason for which the job failed. With `--worlds N`, the process then joins and
// leaves N further Worlds in turn. With `--fork 0`, a forked child then joins as well. With
// `--reuse 0`, the process then closes all descriptors and opens others.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "atoll/world.hpp"

namespace {

int report(int victim) {
  // A process may contain several Worlds, so this extra World must not disturb the World of the
  // job.
  const atoll::World made = atoll::World::single();
  atoll::World world = atoll::World::from_env();
  const std::string mine = fmt::format("value of {}", world.rank());
  const auto values = world.exchange("report", mine);
  bool right = static_cast<int>(values.size()) == world.size();
  for (int rank = 0; right && rank < world.size(); ++rank) {
    right = values[static_cast<std::size_t>(rank)] == fmt::format("value of {}", rank);
  }
  world.barrier();
  if (world.rank() == victim) ::kill(::getpid(), SIGKILL);
  if (victim >= 0) {
    try {
      world.barrier();
    } catch (const atoll::Error& error) {
      fmt::print("rank {}: {}\n", world.rank(), error.what());
      return EXIT_SUCCESS;
    }
  }
  fmt::print("rank {} of {} local {} of {} launcher {} hosts {} exchange {}\n", world.rank(),
             world.size(), world.local_rank(), world.local_size(), world.launcher(),
             world.hosts().size(), right ? "right" : "wrong");
  std::fflush(stdout);
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool is_sanitized = true;  // memory grows, because sanitizers keep freed memory
#else
constexpr bool is_sanitized = false;
#endif

long resident_bytes() {
  long total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Makes Worlds in turn. Each rank in turn comes late to one, and each in turn is late to leave one,
// while the others already join the next. The memory of the process must not grow with the number
// of Worlds.
int repeat(int worlds) {
  using namespace std::chrono_literals;
  constexpr int first = 10;                // number of Worlds before the first measurement
  constexpr long most_growth = 32L << 10;  // limit of the growth, in bytes per World
  int rank = -1, size = 1;
  long before = 0;
  for (int i = 0; i < worlds; ++i) {
    if (i == first) before = resident_bytes();
    if (i % size == rank) std::this_thread::sleep_for(20ms);
    atoll::World world = atoll::World::from_env();
    rank = world.rank();
    size = world.size();
    for (const std::string& seen : world.exchange("number", std::to_string(i))) {
      if (seen == std::to_string(i)) continue;
      fmt::print(stderr, "rank {}: World {} meets World {}\n", rank, i, seen);
      return EXIT_FAILURE;
    }
    if (i / size % size == rank) std::this_thread::sleep_for(60ms);
  }
  const long growth = worlds > first ? (resident_bytes() - before) / (worlds - first) : 0;
  if (is_sanitized || growth <= most_growth) return EXIT_SUCCESS;
  fmt::print(stderr, "rank {}: each World keeps {} bytes\n", rank, growth);
  return EXIT_FAILURE;
}

int join_in_child() {
  int status = 0;
  const pid_t child = ::fork();
  if (child != 0) return ::waitpid(child, &status, 0) == child ? status : EXIT_FAILURE;
  atoll::World::from_env().barrier();
  return EXIT_SUCCESS;
}

int reuse_descriptors() {
  constexpr int most = 1024, opened = 60;
  for (int fd = 3; fd < most; ++fd) ::close(fd);
  for (int i = 0; i < opened; ++i)
    if (::open("/dev/null", O_RDONLY) < 0) return EXIT_FAILURE;
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string_view mode = argc == 3 ? argv[1] : "";
    const int number = argc == 3 ? std::atoi(argv[2]) : -1;
    const int status = report(mode == "--fail" ? number : -1);
    if (mode == "--fork" && status == EXIT_SUCCESS) return join_in_child();
    if (mode == "--reuse" && status == EXIT_SUCCESS) return reuse_descriptors();
    return mode == "--worlds" && status == EXIT_SUCCESS ? repeat(number) : status;
  } catch (const atoll::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return EXIT_FAILURE;
  }
}

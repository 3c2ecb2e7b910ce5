// Joins the job that a launcher started, passes a barrier with the other ranks, and prints one line
// about this rank. With `--fail R`, rank R kills itself after the first barrier, and the other
// ranks print the reason for which the job failed.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

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

}  // namespace

int main(int argc, char** argv) {
  try {
    const bool fails = argc == 3 && std::string_view(argv[1]) == "--fail";
    return report(fails ? std::atoi(argv[2]) : -1);
  } catch (const atoll::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return EXIT_FAILURE;
  }
}

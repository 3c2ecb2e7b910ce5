// Tests the error of a rank that opens a communicator and has no free file descriptor. It is a
// program of its own, because a backend that another test had loaded would need no file.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "atoll/communicator.hpp"
#include "atoll/flight.hpp"
#include "atoll/mesh.hpp"
#include "flight/flight.hpp"
#include "thread_ranks.hpp"
#include "unit/child_process.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"
#include "world/world_internals.hpp"

using atoll_test::ChildProcess;
using atoll_test::has;

namespace {

#ifdef ATOLL_SANITIZE_ADDRESS
// The undefined-behaviour sanitizer opens a pipe to find out whether an object's memory may be
// read. Without a free descriptor it calls every object with virtual functions invalid.
[[maybe_unused]] const bool skipped = [] {
  std::puts("skipped: the undefined-behaviour sanitizer needs file descriptors");
  std::exit(77);
  return true;
}();
#endif

// Takes all free descriptors from this process.
void take_descriptors() {
  const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(next);
  const rlimit limit{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Writes the error of a rank that opens a communicator, with or without free descriptors.
void write_error_of_rank(int out, const atoll::Config& config, bool has_descriptors) {
  const std::string error = atoll_test::error_of([&] {
    atoll::World world = atoll::World::from_env(config);
    const auto mesh = atoll::Mesh::make(world, {1, world.size()});
    world.barrier();
    if (!has_descriptors) take_descriptors();
    try {
      atoll::Communicator::open(mesh.axis("shard"));
    } catch (const atoll::Error&) {
      world.barrier();  // so that the other rank gets its error before this one leaves the job
      throw;
    }
  });
  ::dprintf(out, "%s", error.c_str());
}

}  // namespace

TEST_CASE("a rank without a free file descriptor says so, and the other rank names that rank") {
  const atoll_test::ReservedPort port;
  const auto config = [&](int rank) { return atoll_test::thread_rank_config(rank, 2, port); };
  const ChildProcess zero([&](int out) { write_error_of_rank(out, config(0), true); });
  const ChildProcess one([&](int out) { write_error_of_rank(out, config(1), false); });
  CHECK(has(one.rest(), {"rank 1: communicator shard: no file descriptor is left", "`ulimit -n`"}));
  CHECK(has(zero.rest(), {"rank 0: communicator shard: no backend for CPU memory is usable on all",
                          "host: not usable on rank 1"}));
}

TEST_CASE("a recorder that cannot start leaves nothing behind in its World") {
  const ChildProcess child([](int out) {
    atoll::Config config;
    config.flight = (std::filesystem::temp_directory_path() / "atoll-recorder").string();
    config.log = "off";
    atoll::World world = atoll::World::single(config);
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{0, before.rlim_max};  // no further descriptors
    ::setrlimit(RLIMIT_NOFILE, &none);
    const std::string error = atoll_test::error_of([&] { atoll::Flight::of(world); });
    ::setrlimit(RLIMIT_NOFILE, &before);
    const auto answers =
        atoll::WorldInternals::store(world).ask("question", "", std::chrono::seconds(1));
    ::dprintf(out, "%s; answer: %s", error.c_str(), answers.front().text.c_str());
  });
  const std::string text = child.rest();
  CHECK(has(text, "no file descriptor for the flight recorder"));
  CHECK(text.ends_with("; answer: "));
}

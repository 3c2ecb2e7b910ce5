// Tests processes around a rank: children that it forks do not keep it alive, and it does not
// outlive the launcher that started it.
#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/world.hpp"
#include "unit/child_process.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"

using namespace std::chrono_literals;
using atoll_test::ChildProcess;
using atoll_test::error_of;
using atoll_test::has;
using atoll_test::ReservedPort;

namespace {

using Clock = std::chrono::steady_clock;

// Closes all descriptors but 0 to 2 and `kept`. If `reuses`, pipes then get the closed numbers.
void close_all_but(int kept, bool reuses) {
  for (int fd = 3; fd < 1024; ++fd)
    if (fd != kept) ::close(fd);
  std::array<int, 2> ends{};
  for (int i = 0; reuses && i < 40; ++i)
    if (::pipe(ends.data()) != 0) ::_exit(3);
}

using OnFailure = std::function<void(const atoll::Error&)>;

// Returns whether a rank that owns its process ends within `limit` after the process named `name`
// that has forked it is killed. If `closes`, the rank has closed its descriptors before.
bool ends_with_launcher(const char* name, const std::string& setting,
                        std::chrono::milliseconds limit, const OnFailure& callback = {},
                        bool closes = false, int owns_process = 1) {
  const ChildProcess launcher([&](int out) {
    ::prctl(PR_SET_NAME, name);
    if (::fork() == 0) {
      atoll::Config config;
      config.rank = 0;
      config.size = 1;
      config.log = "off";
      config.parent = setting;
      config.owns_process = owns_process;
      auto world = atoll::World::from_env(config);
      const auto subscription = world.on_failure(callback);
      if (closes) close_all_but(out, false);
      ::dprintf(out, "ready\n");
      std::this_thread::sleep_for(20s);
      ::_exit(0);
    }
    std::this_thread::sleep_for(20s);
  });
  REQUIRE(launcher.line() == "ready");
  ::kill(launcher.pid(), SIGKILL);
  return launcher.ends_within(limit);
}

}  // namespace

TEST_CASE("a rank ends when the launcher that started it is killed") {
  CHECK(ends_with_launcher("mpirun", "", 12s));
  CHECK(ends_with_launcher("a script", "parent", 12s));
  CHECK_FALSE(ends_with_launcher("mpirun", "", 7s, {}, false, 0));
}

TEST_CASE("a rank ends with its launcher although the report of the failure never returns") {
  // As when a signal handler calls fail() on a thread that holds a lock of the World.
  const auto never = [](const atoll::Error&) { std::this_thread::sleep_for(20s); };
  CHECK(ends_with_launcher("mpirun", "", 12s, never));
  CHECK(ends_with_launcher("mpirun", "", 12s, never, true));  // all descriptors are closed, too
}

TEST_CASE("a World can be destroyed after the program has closed all descriptors") {
  for (const int trial : {0, 1, 2, 3}) {
    CAPTURE(trial);
    const int closer = trial % 2;
    const bool reuses = trial >= 2;
    const ReservedPort port;
    std::vector<ChildProcess> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&](int out) {
        bool is_ready = false;
        const std::string error = error_of([&] {
          atoll::Config config = atoll_test::thread_rank_config(rank, 2, port);
          config.parent = "parent";                // the watch of the parent has descriptors, too
          config.host_id = rank == 0 ? "a" : "b";  // the ranks connect over TCP
          config.log = "off";
          config.flight = "/proc/none/flight";  // so has the flight recorder; no such folder exists
          auto world = atoll::World::from_env(config);
          const auto mesh = atoll::Mesh::make(world, {{"data", 2}});
          auto comm = atoll::Communicator::open(mesh.axis("data"));
          auto stream = comm.device().stream();
          std::array<float, 1> number{1};
          comm.all_reduce(number, number, atoll::ReduceOp::sum, stream).synchronize();
          is_ready = ::dprintf(out, "ready\n") > 0;
          if (rank != closer) {
            world.put("reduced", "");
            world.get("never", 20s);
          }
          world.get("reduced", 20s);  // the other rank may still receive what the closer has sent
          close_all_but(out, reuses);
        });
        if (!is_ready) ::dprintf(out, "%s\n", error.c_str());
      });
    }
    for (const ChildProcess& rank : ranks) CHECK(rank.line() == "ready");
    for (const ChildProcess& rank : ranks) CHECK(rank.ends_within(10s));
  }
}

TEST_CASE("a rank outlives its launcher on request, and a parent that is no launcher") {
  CHECK_FALSE(ends_with_launcher("mpirun", "ignore", 7s));
  CHECK_FALSE(ends_with_launcher("a script", "", 7s));
}

TEST_CASE("a rank that dies is lost at once although a child that it forked lives on") {
  const ReservedPort port;
  const ChildProcess one([&](int) {
    auto world = atoll::World::from_env(atoll_test::thread_rank_config(1, 2, port));
    world.barrier();
    if (::fork() == 0) {
      std::this_thread::sleep_for(10s);
      ::_exit(0);
    }
    ::kill(::getpid(), SIGKILL);
  });
  const auto begin = Clock::now();
  CHECK(has(error_of([&] {
              auto world = atoll::World::from_env(atoll_test::thread_rank_config(0, 2, port));
              world.barrier();
              world.get("never", 8s);
            }),
            "rank 1 (host "));
  CHECK(Clock::now() - begin < 8s);
  CHECK_FALSE(one.ends_within(0s));  // its child still runs
}

TEST_CASE("a forked child that destroys a copy of the World does not leave the job") {
  const auto results = atoll_test::on_threads(2, [](atoll::World& given) {
    std::optional<atoll::World> world(std::move(given));
    world->barrier();
    if (world->rank() == 1) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        world.reset();
        ::_exit(0);
      }
      int status = -1;
      ::waitpid(pid, &status, 0);
      if (status != 0) return std::string("the child failed");
    }
    const auto texts = world->exchange("after", "x");
    return texts[0] + texts[1];
  });
  CHECK(results == std::vector<std::string>(2, "xx"));
}

TEST_CASE("a forked child cannot use the World of its parent, nor a communicator") {
  auto world = atoll::World::single();
  const auto mesh = atoll::Mesh::make(world, {{"data", 1}});
  auto comm = atoll::Communicator::open(mesh.axis("data"));
  auto stream = comm.device().stream();
  const std::string expected =
      "this process was forked from rank 0 (pid " + std::to_string(::getpid()) + "), so it cannot";
  std::array<float, 1> number{1};
  const std::function<void()> calls[] = {
      [&] { world.barrier(); },
      [&] { world.put("key", "value"); },
      [&] { world.check(); },
      [&] { comm.all_reduce(number, number, atoll::ReduceOp::sum, stream).synchronize(); },
      [&] {
        atoll::Mesh::make(world, {{"data", 1}});
      },
      [&] { comm.abort("in the child"); }};
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::alarm(20);
    world.fail("of the child");  // a forked child cannot fail the job
    int accepted = 0;
    for (const auto& call : calls) accepted += has(error_of(call), expected) ? 0 : 1;
    ::_exit(accepted + world.rank());
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  CHECK(status == 0);
  CHECK_FALSE(world.failure());
}

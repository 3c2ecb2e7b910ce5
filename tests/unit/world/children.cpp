// Tests processes around a rank: children that it forks do not keep it alive, and it does not
// outlive the launcher that started it.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "atoll/communicator.hpp"
#include "atoll/error.hpp"
#include "atoll/world.hpp"
#include "unit/rank_reports.hpp"

using namespace std::chrono_literals;
using atoll_test::ReservedPort;

namespace {

using Clock = std::chrono::steady_clock;

// A pipe that reaches its end when every process that holds its other side has ended.
struct Alive {
  Alive() { REQUIRE(::pipe(ends.data()) == 0); }
  ~Alive() {
    ::close(ends[0]);
    if (ends[1] >= 0) ::close(ends[1]);
  }
  void close_writer() {
    ::close(ends[1]);
    ends[1] = -1;
  }
  // Reads one byte that another process writes.
  bool wait_for_byte() const {
    char byte = 0;
    return ::read(ends[0], &byte, 1) == 1;
  }
  bool ends_within(std::chrono::milliseconds limit) const {
    pollfd item{ends[0], POLLIN, 0};
    if (::poll(&item, 1, static_cast<int>(limit.count())) <= 0) return false;
    char byte = 0;
    return ::read(ends[0], &byte, 1) == 0;
  }
  std::array<int, 2> ends{};
};

// Closes all descriptors but the standard streams and `kept`. If `reuses`, pipes take the numbers.
void close_all_but(int kept, bool reuses) {
  for (int fd = 3; fd < 1024; ++fd)
    if (fd != kept) ::close(fd);
  std::array<int, 2> ends{};
  for (int i = 0; reuses && i < 40; ++i)
    if (::pipe(ends.data()) != 0) ::_exit(3);
}

using OnFailure = std::function<void(const atoll::Error&)>;

// Forks a process named `name` that forks a rank of a job of one rank. The rank writes a byte and
// then computes until it is ended. If `closes`, it has closed its descriptors before. Returns the
// id of the first process.
pid_t start_under(const char* name, const std::string& setting, const Alive& alive,
                  const OnFailure& callback, bool closes) {
  const pid_t launcher = ::fork();
  REQUIRE(launcher >= 0);
  if (launcher > 0) return launcher;
  ::prctl(PR_SET_NAME, name);
  if (::fork() == 0) {
    atoll::Config config;
    config.rank = 0;
    config.size = 1;
    config.log = "off";
    config.parent = setting;
    auto world = atoll::World::from_env(config);
    const auto subscription = world.on_failure(callback);
    if (closes) close_all_but(alive.ends[1], false);
    if (::write(alive.ends[1], "x", 1) != 1) ::_exit(2);
    std::this_thread::sleep_for(20s);
    ::_exit(0);
  }
  std::this_thread::sleep_for(20s);
  ::_exit(0);
}

bool ends_with_launcher(const char* name, const std::string& setting,
                        std::chrono::milliseconds limit, const OnFailure& callback = {},
                        bool closes = false) {
  Alive alive;
  const pid_t launcher = start_under(name, setting, alive, callback, closes);
  alive.close_writer();
  REQUIRE(alive.wait_for_byte());
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  return alive.ends_within(limit);
}

}  // namespace

TEST_CASE("a rank ends when the launcher that started it is killed") {
  CHECK(ends_with_launcher("mpirun", "", 12s));
  CHECK(ends_with_launcher("a script", "parent", 12s));
}

TEST_CASE("a rank ends with its launcher although the report of the failure never returns") {
  // As when a signal handler calls fail() on a thread that holds a lock of the World.
  const auto never = [](const atoll::Error&) { std::this_thread::sleep_for(20s); };
  CHECK(ends_with_launcher("mpirun", "", 12s, never));
}

TEST_CASE("a rank ends with its launcher although the program has closed all descriptors") {
  const auto never = [](const atoll::Error&) { std::this_thread::sleep_for(20s); };
  CHECK(ends_with_launcher("mpirun", "", 12s, never, true));
}

TEST_CASE("a World can be destroyed after the program has closed all descriptors") {
  for (const int trial : {0, 1, 2, 3}) {
    CAPTURE(trial);
    const int closer = trial % 2;
    const bool reuses = trial >= 2;
    const ReservedPort port;
    std::array<Alive, 2> alive;
    std::array<pid_t, 2> pids{};
    for (int rank = 0; rank < 2; ++rank) {
      pids[static_cast<std::size_t>(rank)] = ::fork();
      if (pids[static_cast<std::size_t>(rank)] != 0) continue;
      try {
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
        const int kept = alive[static_cast<std::size_t>(rank)].ends[1];
        if (::write(kept, "x", 1) != 1) ::_exit(2);
        if (rank != closer) world.get("never", 20s);
        close_all_but(kept, reuses);
      } catch (const atoll::Error&) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    for (Alive& one : alive) one.close_writer();
    for (const Alive& one : alive) CHECK(one.wait_for_byte());
    for (const Alive& one : alive) CHECK(one.ends_within(10s));
    for (const pid_t pid : pids) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
}

TEST_CASE("a rank outlives its launcher on request, and a parent that is no launcher") {
  CHECK_FALSE(ends_with_launcher("mpirun", "ignore", 7s));
  CHECK_FALSE(ends_with_launcher("a script", "", 7s));
}

TEST_CASE("all ranks end when their launcher is killed, although none of them computes") {
  const ReservedPort port;
  Alive alive;
  const pid_t launcher = ::fork();
  REQUIRE(launcher >= 0);
  if (launcher == 0) {
    ::prctl(PR_SET_NAME, "mpirun");
    for (int rank = 0; rank < 2; ++rank) {
      if (::fork() != 0) continue;
      try {
        auto world = atoll::World::from_env(atoll_test::thread_rank_config(rank, 2, port));
        world.barrier();
        if (::write(alive.ends[1], "x", 1) != 1) ::_exit(2);
        world.get("never", 20s);
      } catch (const atoll::Error&) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    std::this_thread::sleep_for(20s);
    ::_exit(0);
  }
  alive.close_writer();
  REQUIRE(alive.wait_for_byte());
  REQUIRE(alive.wait_for_byte());
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  CHECK(alive.ends_within(12s));
}

TEST_CASE("a rank that dies is lost at once although a child that it forked lives on") {
  const ReservedPort port;
  Alive child_alive;
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    auto world = atoll::World::from_env(atoll_test::thread_rank_config(1, 2, port));
    world.barrier();
    if (::fork() == 0) {
      std::this_thread::sleep_for(10s);
      ::_exit(0);
    }
    ::kill(::getpid(), SIGKILL);
  }
  child_alive.close_writer();
  std::string reported;
  const auto begin = Clock::now();
  try {
    auto world = atoll::World::from_env(atoll_test::thread_rank_config(0, 2, port));
    world.barrier();
    world.get("never", 8s);
  } catch (const atoll::Error& error) {
    reported = error.what();
  }
  CHECK_MESSAGE(reported.find("rank 1 (host ") == 0, reported);
  CHECK(Clock::now() - begin < 8s);
  CHECK_FALSE(child_alive.ends_within(0s));  // the child still runs
  ::waitpid(pid, nullptr, 0);
}

TEST_CASE("a forked child that destroys a copy of the World does not leave the job") {
  const ReservedPort port;
  std::array<std::string, 2> results;
  std::array<std::jthread, 2> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks[static_cast<std::size_t>(rank)] = std::jthread([&, rank] {
      try {
        std::optional<atoll::World> world(
            atoll::World::from_env(atoll_test::thread_rank_config(rank, 2, port)));
        world->barrier();
        if (rank == 1) {
          const pid_t pid = ::fork();
          if (pid == 0) {
            world.reset();
            ::_exit(0);
          }
          int status = -1;
          ::waitpid(pid, &status, 0);
          if (status != 0) throw std::runtime_error("the child failed");
        }
        for (const auto& text : world->exchange("after", "x")) {
          results[static_cast<std::size_t>(rank)] += text;
        }
      } catch (const std::exception& error) {
        results[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  CHECK(results[0] == "xx");
  CHECK(results[1] == "xx");
}

TEST_CASE("a forked child cannot use the World of its parent, nor a communicator") {
  auto world = atoll::World::single();
  const auto mesh = atoll::Mesh::make(world, {{"data", 1}});
  auto comm = atoll::Communicator::open(mesh.axis("data"));
  auto stream = comm.device().stream();
  const std::string expected =
      "this process was forked from rank 0 (pid " + std::to_string(::getpid()) +
      "), so it cannot use the World, communicators or engines of that rank: use them before "
      "fork(), or start this process as a rank";
  const auto is_refused = [&](const auto& action) {
    try {
      action();
    } catch (const atoll::Error& error) {
      return error.what() == expected;
    }
    return false;
  };
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::alarm(20);
    std::array<float, 1> number{1};
    const auto sum = [&] {
      comm.all_reduce(number, number, atoll::ReduceOp::sum, stream).synchronize();
    };
    world.fail("of the child");  // reaches nobody
    const int passed = is_refused([&] { world.barrier(); }) +
                       is_refused([&] { world.put("key", "value"); }) +
                       is_refused([&] { world.check(); }) + is_refused(sum) + is_refused([&] {
                         atoll::Mesh::make(world, {{"data", 1}});
                       }) +
                       is_refused([&] { comm.abort("in the child"); });
    ::_exit(10 * passed + world.rank());
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  CHECK(WEXITSTATUS(status) == 60);
  CHECK_FALSE(world.failure());
}

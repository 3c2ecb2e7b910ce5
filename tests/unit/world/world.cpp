// Tests of World with ranks that are threads, and with ranks that are processes, some of which are
// killed.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "atoll/world.hpp"
#include "core/host.hpp"
#include "unit/child_process.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using atoll_test::ChildProcess;
using atoll_test::error_of;
using atoll_test::has;
using atoll_test::on_threads;
using atoll_test::ReservedPort;

namespace {

// Writes "ready" as a rank that joins through environment variables, waits for a key that no rank
// puts, and writes the error that ends the wait.
void run_rank(int out, int rank, int size, const ReservedPort& port) {
  ::setenv("ATOLL_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("ATOLL_SIZE", std::to_string(size).c_str(), 1);
  ::setenv("ATOLL_ADDR", port.address().c_str(), 1);
  ::setenv("ATOLL_TOKEN", "secret", 1);
  ::setenv("ATOLL_LOG", "error", 1);
  const std::string error = error_of([&] {
    atoll::World world = atoll::World::from_env();
    world.barrier();
    ::dprintf(out, "ready\n");
    world.get("never", 60s);
  });
  ::dprintf(out, "%s\n", error.c_str());
}

}  // namespace

TEST_CASE("processes: the death of a rank is reported by name within 2 s") {
  const std::string host = atoll::net::host_name();
  for (const std::size_t victim : {2U, 0U}) {
    const ReservedPort port;
    std::vector<ChildProcess> ranks;
    for (int rank = 0; rank < 3; ++rank)
      ranks.emplace_back([&](int out) { run_rank(out, rank, 3, port); });
    for (const ChildProcess& rank : ranks) CHECK(rank.line() == "ready");
    const auto start = Clock::now();
    ::kill(ranks[victim].pid(), SIGKILL);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const std::string report = ranks[rank].line();
      CHECK(has(report, victim == 0 ? "rank 0 (which serves the store) was lost"
                                    : "rank 2 (host " + host + ", pid "));
      CHECK(report.ends_with(" was lost"));
    }
    CHECK(Clock::now() - start < 2s);
  }
}

TEST_CASE("ranks see each other and exchange") {
  const auto results = on_threads(3, [](atoll::World& world) -> std::string {
    std::string all;
    for (const std::string& part : world.exchange("k", std::to_string(world.rank()))) all += part;
    if (world.rank() == 1) world.put("who", "one");
    all += world.get("who", 10s);
    world.barrier();
    const atoll::Placement& place = world.placements()[static_cast<std::size_t>(world.rank())];
    const bool here = world.hosts().size() == 1 && world.hosts()[0].id == atoll::net::host_id() &&
                      world.hosts()[0].ranks == std::vector{0, 1, 2} && place.pid == ::getpid() &&
                      place.local_rank == world.rank() && world.local_rank() == world.rank() &&
                      world.local_size() == 3 &&
                      place.address == atoll::net::rail_addresses("").front() &&
                      place.rail_addresses == std::vector{place.address};
    return all + (here ? " here " : " lost ") + std::string(world.launcher());
  });
  for (const std::string& result : results) CHECK(result == "012one here explicit");
}

TEST_CASE("without rank 0 the others report the address that they cannot reach") {
  const auto results = on_threads(
      2, [](atoll::World&) { return "joined"; }, 0, 1s);
  CHECK(has(results[1], {"timeout: rank 1 (host ",
                         "cannot reach the store of the job: cannot connect to 127."}));
}

TEST_CASE("a declared failure ends every wait with its reason and runs callbacks once") {
  std::atomic<int> calls{0};
  const auto results = on_threads(3, [&](atoll::World& world) -> std::string {
    // The test fails if the callback runs twice, because set_value() then throws.
    std::promise<void> called;
    const auto subscription = world.on_failure([&](const atoll::Error&) {
      ++calls;
      called.set_value();
    });
    if (world.rank() == 1) {
      world.fail("out of luck");
      world.fail("again");
    }
    try {
      world.barrier();
      return "no error";
    } catch (const atoll::Error& error) {
      CHECK(error.code() == atoll::ErrorCode::aborted);
      REQUIRE(world.failure());
      CHECK(std::string(world.failure()->what()) == error.what());
      CHECK_THROWS_AS(world.check(), atoll::Error);
      std::atomic<bool> at_once{false};
      const auto late = world.on_failure([&](const atoll::Error&) { at_once = true; });
      CHECK(at_once);
      called.get_future().wait();
      return error.what();
    }
  });
  for (const std::string& result : results) CHECK(has(result, {"rank 1 (host ", "): out of luck"}));
  CHECK(calls == 3);
}

TEST_CASE("a World that an exception destroys reports it, not errors that destructors handle") {
  struct Cleanup {
    ~Cleanup() {
      try {
        throw atoll::Error(atoll::ErrorCode::internal, "handled");
      } catch (const atoll::Error&) {
      }
    }
  };
  const auto results = on_threads(2, [](atoll::World& world) -> std::string {
    world.at_exit([](bool) { throw 42; });  // callbacks may throw any object
    const auto called = world.on_failure([](const atoll::Error&) { throw 42; });
    const Cleanup cleanup;
    if (world.rank() == 1) throw atoll::Error(atoll::ErrorCode::io, "no disk");
    world.barrier();
    return "no error";
  });
  CHECK(results[1] == "input/output error: no disk");
  CHECK(has(results[0], {"aborted: rank 1 (host ",
                         "): ended by an exception; the newest error of this thread: no disk"}));
}

TEST_CASE("a World that another exception destroys does not report an earlier error") {
  const auto results = on_threads(2, [](atoll::World& world) -> std::string {
    if (world.rank() == 0) {
      world.barrier();
      return "no error";
    }
    try {
      throw atoll::Error(atoll::ErrorCode::io, "handled");
    } catch (const atoll::Error&) {
    }
    try {
      const atoll::World destroyed = std::move(world);
      throw std::runtime_error("of the program");
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  });
  CHECK(has(results[0], {"): an exception ended this rank, but it is not an atoll::Error of this",
                         "use World::run() to send the text to all ranks"}));
  CHECK(results[1] == "of the program");
}

TEST_CASE("run() sends the text of any exception to the other ranks") {
  const std::string tail = std::string(600, '.') + " END";
  const auto results = [&](const std::function<void(atoll::World&)>& body) {
    return on_threads(2, [&](atoll::World& world) -> std::string {
      try {
        return world.run([&]() -> std::string {
          if (world.rank() == 1) body(world);
          world.barrier();
          return "no error";
        });
      } catch (const atoll::Error&) {
        throw;
      } catch (...) {
        return "another exception";
      }
    });
  };
  // Ranks must receive the text of the error that ends the program, and not of a handled one.
  std::optional<atoll::Error> kept;
  const auto other = results([&](atoll::World&) {
    kept.emplace(atoll::ErrorCode::io, "no checkpoint yet");
    throw std::runtime_error("the loss is NaN");
  });
  CHECK(has(other[0], {"aborted: rank 1 (host ", "): the loss is NaN"}));
  CHECK(
      results([&](atoll::World&) { throw atoll::Error(atoll::ErrorCode::io, tail); })[0].ends_with(
          "): " + tail));
  CHECK(results([](atoll::World&) { throw std::bad_alloc(); })[0].ends_with("): out of memory"));
  CHECK(results([](atoll::World&) { throw 42; })[0].ends_with(
      "): an exception that is not a std::exception"));
}

TEST_CASE("processes: an exception that nobody catches reaches the other ranks as text") {
  const ReservedPort port;
  ChildProcess other([&](int) {
    ::signal(SIGABRT, SIG_DFL);  // doctest's handler would report a failed test
    REQUIRE(std::freopen("/dev/null", "w", stderr) != nullptr);
    std::thread([&] {  // nothing catches the exceptions of a thread
      atoll::Config config = atoll_test::thread_rank_config(1, 2, port);
      config.owns_process = 1;
      atoll::World world = atoll::World::from_env(config);
      throw std::runtime_error("the loss is NaN");
    })
        .join();
  });
  CHECK(has(error_of([&] {
              atoll::World::from_env(atoll_test::thread_rank_config(0, 2, port)).barrier();
            }),
            {"rank 1 (host ", "): ended by an exception: the loss is NaN"}));
  const int status = other.status();
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
}

TEST_CASE("jobs at one address follow each other, whichever rank leaves first") {
  const ReservedPort port;
  std::vector<std::string> results(3);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& result = results[static_cast<std::size_t>(rank)];
      const std::string error = error_of([&] {
        for (int job = 0; job < 6; ++job) {
          auto world = atoll::World::from_env(atoll_test::thread_rank_config(rank, 3, port));
          for (const std::string& entry : world.exchange("job", std::to_string(job)))
            result += entry;
          std::this_thread::sleep_for((rank + job) % 3 * 20ms);
        }
      });
      if (error != "no error") result = error;
    });
  }
  threads.clear();
  for (const std::string& result : results) CHECK(result == "000111222333444555");
}

TEST_CASE("port 0: rank 0 logs the free port that it has chosen, which the other ranks must know") {
  const ReservedPort unused;
  atoll::Config config = atoll_test::thread_rank_config(1, 2, unused);
  config.addr = "127.0.0.1:0";
  CHECK(has(error_of([&] { atoll::World::from_env(config); }),
            {"on rank 1: only rank 0 may choose port 0", "set the port that rank 0 logs"}));
  config.rank = 0;
  config.log = "info";
  ChildProcess first([&](int out) {
    ::dup2(out, STDERR_FILENO);
    atoll::World::from_env(config).barrier();
  });
  const std::string logged = first.line();
  const auto at = logged.find("set ATOLL_ADDR=");
  REQUIRE(at != std::string::npos);
  config = atoll_test::thread_rank_config(1, 2, unused);
  config.addr = logged.substr(at + 15, logged.find(" for the other ranks") - at - 15);
  CHECK_NOTHROW(atoll::World::from_env(config).barrier());
  CHECK(first.status() == 0);
}

TEST_CASE("rank 0 serves the store until the last rank has said farewell") {
  const auto results = on_threads(2, [](atoll::World& world) -> std::string {
    if (world.rank() == 0) return "gone";
    std::this_thread::sleep_for(300ms);
    world.put("still", "there");
    return world.get("still", 1s);
  });
  CHECK(results[1] == "there");
}

TEST_CASE("tickets count per key, and at_exit callbacks run in reverse order") {
  std::string order;
  {
    atoll::World world = atoll::World::single();
    CHECK(world.ticket("a") == 0);
    CHECK(world.ticket("a") == 1);
    CHECK(world.ticket("b") == 0);
    world.at_exit([&](bool failed) { order += failed ? "first failed" : "first"; });
    atoll::World moved = std::move(world);
    moved.at_exit([&](bool) {
      order += "second ";
      // A callback that another callback registers runs directly after it.
      for (int i = 0; i < 100; ++i) moved.at_exit([&](bool) { order += "."; });
    });
    CHECK(order.empty());
  }
  CHECK(order == "second " + std::string(100, '.') + "first");
}

TEST_CASE("a job of one rank") {
  atoll::World world = atoll::World::single();
  CHECK(world.launcher() == "single");
  CHECK(world.local_size() == 1);
  world.put("k", "v");
  CHECK(world.get("k", 1ms) == "v");
  CHECK_THROWS_AS(world.get("other", 1ms), atoll::Error);
  CHECK(world.exchange("e", "mine") == std::vector<std::string>{"mine"});
  world.barrier();
  CHECK_FALSE(world.failure());
  CHECK_THROWS_AS(world.put("", "v"), atoll::Error);
  CHECK_THROWS_AS(world.put(std::string(257, 'k'), "v"), atoll::Error);
  CHECK_THROWS_AS(world.put("k", std::string((16u << 20) + 1, 'v')), atoll::Error);

  std::jthread waiter([&] { CHECK_THROWS_AS(world.get("never", 60s), atoll::Error); });
  int calls = 0;
  const auto subscription = world.on_failure([&](const atoll::Error& error) {
    CHECK(std::string(error.what()) == "rank 0: enough");
    ++calls;
  });
  auto cancelled = world.on_failure([&](const atoll::Error&) { calls += 100; });
  cancelled = atoll::World::Subscription();
  world.fail("enough");
  CHECK(calls == 1);
}

TEST_CASE("a subscription waits for its callback, but not from inside it") {
  atoll::World world = atoll::World::single();
  std::promise<void> entered, leave;
  std::atomic<bool> returned{false};
  auto slow =
      std::make_unique<atoll::World::Subscription>(world.on_failure([&](const atoll::Error&) {
        entered.set_value();
        leave.get_future().wait();
        returned = true;
      }));
  std::unique_ptr<atoll::World::Subscription> own;
  own = std::make_unique<atoll::World::Subscription>(
      world.on_failure([&](const atoll::Error&) { own.reset(); }));
  std::jthread failing([&] { world.fail("now"); });
  entered.get_future().wait();
  std::jthread releasing([&] {
    std::this_thread::sleep_for(50ms);
    leave.set_value();
  });
  slow.reset();
  CHECK(returned);
  failing.join();
  CHECK(own == nullptr);
}

TEST_CASE("a job from ranks and a broadcast of the program") {
  std::promise<std::string> sent;
  std::shared_future<std::string> text = sent.get_future().share();
  std::vector<std::string> results(3);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto broadcast = [&](const std::string& mine) {
        if (rank == 0) sent.set_value(mine);
        return text.get();
      };
      auto world = atoll::World::from_ranks(rank, 3, broadcast, {});
      for (const std::string& entry : world.exchange("rank", std::to_string(world.rank())))
        results[static_cast<std::size_t>(rank)] += entry;
      results[static_cast<std::size_t>(rank)] += world.launcher();
    });
  }
  threads.clear();
  for (const std::string& result : results) CHECK(result == "012program");
  CHECK(atoll::World::from_ranks(0, 1, {}).size() == 1);
  CHECK(
      has(error_of([] { atoll::World::from_ranks(3, 3, {}); }), "rank 3 of 3: expected 0 <= rank"));
  CHECK(has(error_of([] { atoll::World::from_ranks(1, 3, {}); }), "no broadcast function"));
}

TEST_CASE(
    "a job from ranks and a broadcast: the other ranks get the reason why rank 0 cannot serve") {
  std::promise<std::string> sent;
  std::shared_future<std::string> text = sent.get_future().share();
  const auto join = [&](int rank, const atoll::Config& config) {
    const auto broadcast = [&](const std::string& mine) {
      if (rank == 0) sent.set_value(mine);
      return text.get();
    };
    return error_of([&] { atoll::World::from_ranks(rank, 2, broadcast, config); });
  };
  std::string reason;
  std::jthread first([&] {
    atoll::Config config;
    config.host_id = "no host";
    reason = join(0, config);
  });
  const std::string seen = join(1, {});
  first.join();
  CHECK(has(reason, "ATOLL_HOST_ID=\"no host\""));
  CHECK(has(seen, {"rank 0 cannot serve the store: ", "ATOLL_HOST_ID=\"no host\""}));
}

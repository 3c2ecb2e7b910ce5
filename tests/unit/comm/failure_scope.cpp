// Failures with the scope of a communicator: all its ranks get the error of the rank that failed
// first, other communicators and the World go on, and streams can be used again.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/flight.hpp"
#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"
#include "planted_delay.hpp"
#include "reserved_port.hpp"
#include "thread_ranks.hpp"
#include "unit/child_process.hpp"
#include "unit/error_text.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using namespace std::chrono_literals;
using atoll::Communicator;
using atoll_test::error_of;
using atoll_test::has;
using Floats = std::vector<float>;

// Runs `body` on ranks whose failures have the scope of a communicator.
void run(int ranks, const std::function<void(atoll::World&)>& body,
         std::chrono::seconds timeout = 30s) {
  atoll_test::run_thread_ranks(ranks, body, [&](atoll::Config& config) {
    config.failure_scope = "communicator";
    config.timeout = timeout;
  });
}

Communicator open(atoll::World& world, std::vector<int> ranks, std::string name) {
  return Communicator::open(world, std::move(ranks), std::move(name), {.backend = "host"});
}

float sum_of_ones(Communicator& communicator, atoll::Stream& stream) {
  Floats values(8, 1.0f);
  communicator.all_reduce(values, values, atoll::ReduceOp::sum, stream).synchronize();
  return values.back();
}

}  // namespace

TEST_CASE("calls that differ fail their communicator on all ranks with one error") {
  std::vector<std::string> errors(3);
  run(3, [&](atoll::World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    auto failing = open(world, {0, 1, 2}, "failing"), other = open(world, {0, 1, 2}, "other");
    auto stream = atoll::Device::cpu().stream();
    CHECK(sum_of_ones(failing, stream) == 3.0f);
    Floats values(world.rank() == 1 ? 6 : 3, 1.0f);
    const auto work = failing.all_reduce(values, values, atoll::ReduceOp::sum, stream);
    errors[rank] = error_of([&] { work.synchronize(); });
    CHECK(work.error().has_value());
    CHECK(error_of([&] { sum_of_ones(failing, stream); }) == errors[rank]);
    CHECK(sum_of_ones(other, stream) == 3.0f);  // on the stream on which the other failed
    world.barrier();
    CHECK_FALSE(world.failure());
    auto later = open(world, {2, 1, 0}, "failing");
    CHECK(sum_of_ones(later, stream) == 3.0f);
  });
  CHECK(has(errors[0], {"mismatch: ", "communicator failing: ", "rank 1", "all_reduce 1"}));
  CHECK(errors[1] == errors[0]);
  CHECK(errors[2] == errors[0]);
}

TEST_CASE("an operation that times out fails its communicator and no other") {
  std::vector<std::string> errors(3);
  std::atomic<int> sums{0};
  run(3, [&](atoll::World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    auto failing = open(world, {0, 1, 2}, "failing"), other = open(world, {0, 1, 2}, "other");
    std::atomic<bool> failed{false};
    // Another thread keeps calling the other communicator; all ranks make the same number of calls.
    std::jthread going_on([&] {
      auto stream = atoll::Device::cpu().stream();
      while (true) {
        Floats go(1, failed ? 1.0f : 0.0f);
        other.all_reduce(go, go, atoll::ReduceOp::sum, stream).synchronize();
        ++sums;
        if (go[0] == 3.0f) return;
      }
    });
    auto stream = atoll::Device::cpu().stream();
    if (world.rank() == 1) std::this_thread::sleep_for(2s);
    auto brief = failing.with_timeout(500ms);
    errors[rank] = error_of([&] { sum_of_ones(brief, stream); });
    failed = true;
    going_on.join();
    CHECK_FALSE(world.failure());
  });
  CHECK(has(errors[0], {"timeout: ", "communicator failing: ", "all_reduce", "rank 1"}));
  CHECK(errors[1] == errors[0]);
  CHECK(errors[2] == errors[0]);
  CHECK(sums > 30);
}

TEST_CASE(
    "a communicator that another rank aborts ends with one error, and abort() returns at once") {
  std::vector<std::string> errors(2);
  run(2, [&](atoll::World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    auto aborted = open(world, {0, 1}, "aborted"), other = open(world, {0, 1}, "other");
    auto stream = atoll::Device::cpu().stream();
    if (world.rank() == 0) {
      Floats values(4, 1.0f);
      const auto work = aborted.all_reduce(values, values, atoll::ReduceOp::sum, stream);
      errors[rank] = error_of([&] { work.synchronize(); });
    } else {
      std::this_thread::sleep_for(50ms);
      const auto begin = std::chrono::steady_clock::now();
      aborted.abort("no progress");
      CHECK(std::chrono::steady_clock::now() - begin < 50ms);
      errors[rank] = error_of([&] { sum_of_ones(aborted, stream); });
    }
    CHECK(sum_of_ones(other, stream) == 2.0f);
  });
  CHECK(errors[0] == "aborted: communicator aborted was aborted by rank 1: no progress");
  CHECK(errors[1] == errors[0]);
}

TEST_CASE("ranks that abort a communicator at the same time report one error") {
  std::vector<std::string> errors(3);
  run(3, [&](atoll::World& world) {
    auto aborted = open(world, {0, 1, 2}, "aborted");
    world.barrier();
    aborted.abort("by " + std::to_string(world.rank()));
    world.barrier();  // the store has announced the first abort before it answers
    errors[static_cast<std::size_t>(world.rank())] = error_of([&] { aborted.check(); });
  });
  CHECK(has(errors[0], {"aborted: communicator aborted was aborted by rank "}));
  CHECK(errors[1] == errors[0]);
  CHECK(errors[2] == errors[0]);
}

TEST_CASE("a stop ends open() on all ranks, also on those that call it later") {
  std::vector<std::string> errors(3);
  run(3, [&](atoll::World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto open_until = [&](const std::stop_token& stop) {
      Communicator::open(world, {0, 1, 2}, "stopped", {.backend = "host", .stop = stop});
    };
    std::stop_source source;
    std::jthread stopper;
    if (rank == 0) {
      stopper = std::jthread([&] {
        std::this_thread::sleep_for(50ms);
        source.request_stop();
      });
    }
    if (rank == 2) std::this_thread::sleep_for(150ms);
    errors[rank] = error_of([&] { open_until(source.get_token()); });
    const std::string again = error_of([&] { open_until(source.get_token()); });
    CHECK(has(again, {"aborted: ", "opening communicator stopped: rank 0 stopped it"}));
    CHECK_FALSE(world.failure());
    auto later = open(world, {0, 1, 2}, "stopped");
    auto stream = atoll::Device::cpu().stream();
    CHECK(sum_of_ones(later, stream) == 3.0f);
  });
  for (const std::string& error : errors)
    CHECK(has(error, {"aborted: ", "opening communicator stopped: rank 0 stopped it"}));
}

TEST_CASE("a stop and an abort end ranks whose backend connects") {
  std::vector<std::string> errors(2);
  atoll_test::run_thread_ranks(
      2,
      [&](atoll::World& world) {
        const auto rank = static_cast<std::size_t>(world.rank());
        std::stop_source source;
        std::jthread stopper;
        if (rank == 0) {
          stopper = std::jthread([&] {
            while (atoll_test::waiting_ranks() < 2) std::this_thread::sleep_for(1ms);
            source.request_stop();
          });
        }
        errors[rank] = error_of([&] {
          Communicator::open(world, {0, 1}, "waits", {.stop = source.get_token()});
        });
        CHECK_FALSE(world.failure());
        auto later = Communicator::open(world, {0, 1}, "later");
        auto stream = atoll::Device::cpu().stream();
        CHECK(sum_of_ones(later, stream) == 2.0f);
      },
      [](atoll::Config& config) {
        config.failure_scope = "communicator";
        atoll_test::use_delay_backend(config);
      });
  CHECK(errors[0] == "aborted: communicator waits was aborted by rank 0: its open() was stopped");
  CHECK(errors[1] == errors[0]);
}

TEST_CASE("operations complete although a rank leaves the job after its part of them") {
  constexpr int ranks = 3;
  atoll_test::run_thread_ranks(
      ranks,
      [](atoll::World& world) {
        auto all = std::make_unique<Communicator>(open(world, {0, 1, 2}, "all"));
        auto stream = atoll::Device::cpu().stream();
        Floats values(100, static_cast<float>(world.rank()));
        all->broadcast(values, 2, stream).synchronize();  // connects the ranks
        values.assign(100, static_cast<float>(world.rank()));
        if (world.rank() != 2) stream.enqueue([] { std::this_thread::sleep_for(20ms); });
        const auto work = all->broadcast(values, 2, stream);
        world.barrier();
        CHECK(error_of([&] { work.synchronize(); }) == "no error");
        CHECK(values == Floats(100, 2.0f));
        all.reset();
        if (world.rank() == 2) world.leave();
      },
      [](atoll::Config& config) {
        config.failure_scope = "communicator";
        config.host_id = "h" + std::to_string(config.rank);
      });
}

TEST_CASE("a rank that leaves the job ends the communicators that contain it") {
  std::string error;
  run(3, [&](atoll::World& world) {
    auto rest = std::make_unique<Communicator>(
        open(world, world.rank() == 2 ? std::vector{2} : std::vector{0, 1}, "rest"));
    auto all = std::make_unique<Communicator>(open(world, {0, 1, 2}, "all"));
    auto stream = atoll::Device::cpu().stream();
    CHECK(sum_of_ones(*all, stream) == 3.0f);
    if (world.rank() == 0) {
      CHECK(has(error_of([&] { world.leave(); }), "rank 0 serves the store"));
    }
    if (world.rank() == 2) {
      CHECK(has(error_of([&] { world.leave(); }), "destroy the meshes, axes, communicators"));
      all.reset();
      rest.reset();
      world.leave();
      CHECK(has(error_of([&] { world.barrier(); }), "rank 2 has left the job"));
      return;
    }
    std::vector<std::string> gone;
    std::latch is_told{1};
    const auto told = world.on_departure([&](int rank, const atoll::Error& why) {
      gone.push_back(std::to_string(rank) + why.what());
      is_told.count_down();
    });
    const std::string mine = error_of([&] { sum_of_ones(*all, stream); });
    CHECK(has(mine, {"aborted: communicator all: rank 2 (", "has left the job"}));
    CHECK(world.departed() == std::vector{2});
    is_told.wait();
    CHECK(gone.size() == 1);
    CHECK(has(error_of([&] { world.barrier(); }), "has left the job"));
    CHECK(sum_of_ones(*rest, stream) == 2.0f);
    CHECK_FALSE(world.failure());
    if (world.rank() == 0) error = mine;
  });
  CHECK_FALSE(error.empty());
}

TEST_CASE("processes: a killed rank ends the communicators that contain it, and the others go on") {
  const atoll_test::ReservedPort port;
  const train_test::TemporaryFolder folder;
  const auto config_of = [&](int rank) {
    atoll::Config config;
    config.rank = rank;
    config.size = 3;
    config.addr = port.address();
    config.token = "killed";
    config.failure_scope = "communicator";
    config.flight = (folder.path() / "run").string();
    config.log = "off";
    return config;
  };
  const auto body = [&](int rank) {
    auto world = atoll::World::from_env(config_of(rank));
    auto all = open(world, {0, 1, 2}, "all");
    auto pair = open(world, rank == 2 ? std::vector{2} : std::vector{0, 1}, "pair");
    auto stream = atoll::Device::cpu().stream();
    if (sum_of_ones(all, stream) != 3.0f) return std::string("wrong sum");
    if (rank == 2) ::kill(::getpid(), SIGKILL);
    const std::string error = error_of([&] { sum_of_ones(all, stream); });
    const bool goes_on =
        sum_of_ones(pair, stream) == 2.0f && !world.failure() && world.departed() == std::vector{2};
    return error + (goes_on ? "" : "; the others did not go on");
  };
  atoll_test::ChildProcess killed([&](int) { body(2); });
  const atoll_test::ChildProcess other([&](int out) { ::dprintf(out, "%s\n", body(1).c_str()); });
  const std::string mine = body(0);
  CHECK(has(mine, {"peer lost: communicator all: rank 2 (", "was lost"}));
  CHECK(other.line() == mine);
  CHECK(WIFSIGNALED(killed.status()));
  for (const char* file : {"run.0.json", "run.1.json"}) {
    CHECK(has(atoll::read_flight(folder.path() / file).failure,
              {"communicator all: rank 2 (", "was lost"}));
  }
}

TEST_CASE(
    "an engine whose reduction failed updates nothing, although the program knows the error") {
  namespace fsdp = atoll::fsdp;
  std::atomic<int> kept{0};
  std::latch enqueued{1};
  run(2, [&](atoll::World& world) {
    auto engine = std::make_unique<fsdp::Engine>(
        atoll::Mesh::make(world, {2, 1}),
        fsdp::Options{.strategy = fsdp::Strategy::no_shard, .backend = "host"});
    auto& unit = engine->add_unit("unit", {{"w", {64}}});
    engine->seal({"unit"});
    engine->initialize(1);
    const auto value = [&] { return engine->segments().front().values.as<float>()[0]; };
    const float before = value();
    auto optimizer = std::make_unique<fsdp::Optimizer>(*engine);
    auto compute = engine->device().stream(), other = engine->device().stream();
    if (world.rank() == 1) {  // takes part up to the reduction, for which the other rank then waits
      error_of([&] {
        auto pass = engine->begin({}, compute);
        { auto w = pass.forward(unit); }
        enqueued.wait();
      });
      optimizer.reset();
      engine.reset();
      return world.leave();
    }
    {
      auto pass = engine->begin({}, compute);
      { auto w = pass.forward(unit); }
      auto w = pass.backward(unit);
      compute.enqueue(
          [view = w.grad("w").view] { std::fill_n(view.as<float>(), view.count, 1.0f); });
    }
    engine->wait_gradients(other);
    enqueued.count_down();
    CHECK(has(error_of([&] { other.synchronize(); }), "has left the job"));
    CHECK(has(error_of([&] { optimizer->step(0.5f, compute); }), "has left the job"));
    CHECK(error_of([&] { compute.synchronize(); }) == "no error");
    if (value() == before) ++kept;
  });
  CHECK(kept == 1);
}

TEST_CASE("ranks must agree about the scope") {
  std::string error;
  try {
    atoll_test::run_thread_ranks(
        2, [](atoll::World&) {},
        [](atoll::Config& config) {
          if (config.rank == 1) config.failure_scope = "communicator";
        });
  } catch (const atoll::Error& problem) {
    error = problem.what();
  }
  CHECK(has(error, {"ATOLL_FAILURE_SCOPE: \"\" on rank 0, \"communicator\" on rank 1"}));
}

TEST_CASE("a stream runs work again once a call has told its error") {
  auto stream = atoll::Device::cpu().stream({.name = "first"});
  auto follower = atoll::Device::cpu().stream({.name = "follower"});
  int ran = 0;
  stream.enqueue([] { throw atoll::Error(atoll::ErrorCode::io, "broken"); });
  const atoll::Event failed = stream.record();
  follower.wait(failed);
  follower.enqueue([&] { ++ran; });  // dropped
  CHECK(has(error_of([&] { stream.synchronize(); }), "broken"));
  stream.enqueue([&] { ++ran; });
  CHECK_NOTHROW(stream.synchronize());
  CHECK(ran == 1);
  // The program knows the error, so it does not affect work that is enqueued now.
  follower.enqueue([&] { ++ran; });
  CHECK_NOTHROW(follower.synchronize());
  CHECK(ran == 2);
  follower.wait(failed);
  follower.enqueue([&] { ++ran; });
  CHECK_NOTHROW(follower.synchronize());
  CHECK(ran == 3);
  CHECK(has(error_of([&] { failed.synchronize(); }), "broken"));
  stream.enqueue([] { throw atoll::Error(atoll::ErrorCode::io, "again"); });
  stream.enqueue([&] { ++ran; });  // dropped
  CHECK(has(error_of([&] { stream.synchronize(); }), "again"));
  CHECK(ran == 3);
}

TEST_CASE("callbacks of a Work are called once, with its error") {
  run(2, [&](atoll::World& world) {
    auto good = open(world, {0, 1}, "good"), bad = open(world, {0, 1}, "bad");
    auto own = open(world, {world.rank()}, "own");
    auto stream = atoll::Device::cpu().stream();
    Floats values(4, 1.0f);
    std::atomic<int> calls{0};
    std::string order;
    {
      std::latch called{3};
      if (world.rank() == 1) std::this_thread::sleep_for(20ms);
      const auto work = good.all_reduce(values, values, atoll::ReduceOp::sum, stream);
      for (const char* name : {"a", "b", "c"}) {
        work.then([&, name](const std::optional<atoll::Error>& error) {
          CHECK_FALSE(error);
          CHECK(values[0] == 2.0f);
          order += name;
          called.count_down();
          throw std::runtime_error("logged");
        });
      }
      CHECK(work.synchronize_for(10s));
      called.wait();
      work.then([&](const std::optional<atoll::Error>&) { order += "d"; });  // runs at once
      CHECK(order == "abcd");
    }
    std::latch called{2};
    std::string errors[2];
    Floats more(world.rank() == 0 ? 4 : 8, 1.0f);
    const auto work = bad.all_reduce(more, more, atoll::ReduceOp::sum, stream);
    const auto dropped = own.all_reduce(values, values, atoll::ReduceOp::sum, stream);
    const auto note = [&](std::string& text) {
      return [&](const std::optional<atoll::Error>& error) {
        text = error ? error->what() : "";
        ++calls;
        called.count_down();
      };
    };
    work.then(note(errors[0]));
    dropped.then(note(errors[1]));
    called.wait();
    CHECK(has(errors[0], {"communicator bad: ", "all_reduce"}));
    CHECK_FALSE(errors[1].empty());
    CHECK(calls == 2);
  });
}

TEST_CASE("synchronize_for returns false while an operation is in flight") {
  std::latch looked{1};
  run(2, [&](atoll::World& world) {
    auto both = open(world, {0, 1}, "both");
    auto stream = atoll::Device::cpu().stream();
    if (world.rank() == 1) looked.wait();
    Floats values(4, 1.0f);
    // The end of a handle does not wait while there is another one.
    const auto work =
        both.with_timeout(20s).all_reduce(values, values, atoll::ReduceOp::sum, stream);
    if (world.rank() == 0) {
      CHECK_FALSE(work.synchronize_for(5ms));
      CHECK_FALSE(work.error());
      looked.count_down();
    }
    CHECK(work.synchronize_for(20s));
    CHECK_FALSE(work.error());
  });
}

TEST_CASE("a World made from a key-value store of the program") {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> store;
  std::vector<std::jthread> ranks;
  std::atomic<int> done{0};
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      auto world = atoll::World::from_exchange(
          rank, 3,
          [&](const std::string& key, const std::string& value) {
            const std::lock_guard lock(mutex);
            CHECK(store.emplace(key, value).second);
            changed.notify_all();
          },
          [&](const std::string& key) {
            std::unique_lock lock(mutex);
            // The ranks of this test share a process, so each World has its own key.
            changed.wait_for(lock, 10s, [&] { return !store.empty(); });
            return store.empty() ? key : store.begin()->second;
          },
          atoll::Config());
      CHECK(world.launcher() == "program");
      world.barrier();
      ++done;
    });
  }
  ranks.clear();
  CHECK(done == 3);
}

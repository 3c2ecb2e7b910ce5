// Tests of the launch watchdog: completion, absent ranks, failures after the launch, and failures
// of other ranks. A test device and a test backend behave like a GPU, but launch operations on host
// memory.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "atoll/communicator.hpp"
#include "flight/flight.hpp"
#include "launching_device.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"

namespace {

using namespace std::chrono_literals;
using atoll_test::error_of;
using atoll_test::has;
using Floats = std::vector<float>;

// Runs `body` on thread ranks. `body` must not throw, because doctest would then collect captured
// values from several threads at once.
void run(int ranks, std::chrono::seconds timeout, const std::function<void(atoll::World&)>& body) {
  atoll_test::run_thread_ranks(ranks, body, [&](atoll::Config& config) {
    config.plugin_path = ATOLL_TEST_PLUGINS;
    config.backend = "launching";
    config.timeout = timeout;
  });
}

atoll::Device launching() { return atoll::Device(std::make_shared<atoll_test::LaunchingDevice>()); }

atoll::Communicator open(atoll::World& world, const std::string& name,
                         const atoll::Device& device) {
  const auto mesh = atoll::Mesh::make(world, {1, world.size()});
  return atoll::Communicator::open(mesh.axis("world"), {.name = name, .device = device});
}

atoll::FlightLog record(atoll::World& world) {
  return atoll::Flight::of(world)->recorder().snapshot();
}

// Waits up to 10 s until the watchdog has recorded the wanted state of the last operation. Returns
// the recorded state.
atoll::FlightState last_state(atoll::World& world, atoll::FlightState wanted) {
  const auto patience = std::chrono::steady_clock::now() + 10s;
  while (true) {
    const atoll::FlightState state = record(world).operations.back().state;
    if (state == wanted || std::chrono::steady_clock::now() > patience) return state;
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

TEST_CASE("an operation is recorded as complete when it has run, not when it is launched") {
  run(2, 60s, [](atoll::World& world) {
    const auto device = launching();
    auto stream = device.stream();
    auto comm = open(world, "steady", device);
    std::atomic<bool> go{false};
    stream.enqueue([&] {
      while (!go) std::this_thread::sleep_for(1ms);
    });
    Floats data(3, static_cast<float>(world.rank() + 1));
    const auto work = comm.all_reduce(data, data, atoll::ReduceOp::sum, stream);
    std::this_thread::sleep_for(50ms);
    CHECK_FALSE(work.done());
    CHECK(record(world).operations.back().state == atoll::FlightState::enqueued);
    go = true;
    work.synchronize();
    CHECK(data == Floats(3, 3.0f));
    CHECK(last_state(world, atoll::FlightState::completed) == atoll::FlightState::completed);
    CHECK(record(world).communicators.back().completed == 1);
    for (int i = 0; i < 100; ++i) {
      comm.all_reduce(data, data, atoll::ReduceOp::max, stream).wait(stream);
    }
    stream.synchronize();
    CHECK(data == Floats(3, 3.0f));
    CHECK(last_state(world, atoll::FlightState::completed) == atoll::FlightState::completed);
    CHECK(record(world).communicators.back().completed == 101);
  });
}

TEST_CASE("after a timeout the errors of Work and stream name the absent rank") {
  std::atomic<int> told{0};
  run(3, 1s, [&](atoll::World& world) {
    const auto device = launching();
    auto stream = device.stream();
    auto comm = open(world, "waiting", device);
    Floats data(4, 1.0f);
    comm.all_reduce(data, data, atoll::ReduceOp::sum, stream).synchronize();
    if (world.rank() == 2) {
      while (!world.failure()) std::this_thread::sleep_for(1ms);
      return;
    }
    const auto work = comm.all_reduce(data, data, atoll::ReduceOp::sum, stream);
    CHECK(has(error_of([&] { work.synchronize(); }), {"rank 2", "all_reduce"}));
    CHECK(has(error_of([&] { stream.synchronize(); }), "rank 2"));
    std::latch called{1};
    work.then([&](const std::optional<atoll::Error>& error) {
      CHECK((error && has(error->what(), "rank 2")));
      called.count_down();
    });
    called.wait();
    const auto patience = std::chrono::steady_clock::now() + 10s;
    while (error_of([&] { work.wait(stream); }) == "no error") {
      REQUIRE(std::chrono::steady_clock::now() < patience);
    }
    CHECK(record(world).operations.back().state == atoll::FlightState::failed);
    ++told;
  });
  CHECK(told == 2);
}

TEST_CASE(
    "the timeout begins when the stream reaches the operation, so earlier compute may take long") {
  run(2, 1s, [](atoll::World& world) {
    const auto device = launching();
    auto stream = device.stream();
    auto comm = open(world, "late", device);
    stream.enqueue([] { std::this_thread::sleep_for(2500ms); });
    Floats data(4, 1.0f);
    const auto work = comm.all_reduce(data, data, atoll::ReduceOp::sum, stream);
    std::atomic<int> calls{0};
    std::latch called{1};
    work.then([&](const std::optional<atoll::Error>& error) {
      CHECK_FALSE(error);
      CHECK(data == Floats(4, 2.0f));
      ++calls;
      called.count_down();
    });
    CHECK(calls == 0);
    called.wait();
    work.synchronize();
    CHECK(calls == 1);
  });
}

TEST_CASE(
    "a failure after the launch reaches every rank and every stream that waits for the operation") {
  std::atomic<int> told{0};
  run(2, 60s, [&](atoll::World& world) {
    const auto device = launching();
    std::latch waits{1};
    auto stream = device.stream(), after = device.stream();
    auto comm = open(world, "broken", device);
    Floats data(4, 1.0f);
    stream.enqueue([&] { waits.wait(); });
    const auto work = comm.all_reduce(data, data, atoll::ReduceOp::sum, stream);
    work.wait(after);
    world.barrier();  // a rank that calls the operation after the failure gets the error at once
    waits.count_down();
    CHECK(has(error_of([&] { work.synchronize(); }), "the kernel was lost"));
    CHECK(has(error_of([&] { after.synchronize(); }), "the kernel was lost"));
    ++told;
  });
  CHECK(told == 2);
}

TEST_CASE("a failure of another rank ends operations in flight and refuses new operations") {
  std::atomic<int> told{0};
  run(2, 60s, [&](atoll::World& world) {
    const auto device = launching();
    auto stream = device.stream();
    auto comm = open(world, "innocent", device);
    Floats data(4, 1.0f);
    if (world.rank() == 1) {
      std::this_thread::sleep_for(100ms);
      world.fail("the disk of rank 1 is full");
      return;
    }
    const auto work = comm.all_reduce(data, data, atoll::ReduceOp::sum, stream);
    CHECK(has(error_of([&] { work.synchronize(); }), "the disk of rank 1 is full"));
    CHECK(error_of([&] { stream.synchronize(); }) != "no error");
    CHECK(error_of([&] {
            static_cast<void>(comm.all_reduce(data, data, atoll::ReduceOp::sum, stream));
          }) != "no error");
    ++told;
  });
  CHECK(told == 1);
}

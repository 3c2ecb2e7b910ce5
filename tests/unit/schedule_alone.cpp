// Tests of a Scheduler without an engine: overlap, and limits on the bytes in flight.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "atoll/schedule.hpp"
#include "rank_reports.hpp"
#include "thread_ranks.hpp"

using atoll::DType;
using atoll::Event;
using atoll::Lane;
using atoll::Mesh;
using atoll::Scheduler;
using atoll::View;

namespace {

// A scheduler of one rank, on which collectives are copies, and a compute stream.
struct Alone {
  explicit Alone(atoll::LaneBytes limits)
      : mesh(Mesh::make(world, {1, 1})),
        scheduler(mesh.axis("shard"), mesh.axis("replicate"), {.max_in_flight = limits}),
        compute(scheduler.device().stream({.name = "compute"})) {}

  atoll::Work gather(View dst) { return scheduler.all_gather(dst.part(0, 0), dst.part(0, 0), {}); }
  // Starts an operation that occupies data.bytes() bytes in flight.
  atoll::Work reduce(View data) { return scheduler.all_reduce(data, {}); }

  atoll::World world = atoll::World::single();
  Mesh mesh;
  Scheduler scheduler;
  atoll::Stream compute;
  std::vector<float> memory = std::vector<float>(1000);
  View bytes(std::uint64_t n) { return View(memory.data(), n, DType::u8); }
};

}  // namespace

TEST_CASE("an axis without ranks means this rank alone, whatever mesh was planned") {
  atoll_test::run_thread_ranks(2, [](atoll::World& world) {
    const Mesh mesh = Mesh::make(world, {1, 2});
    Scheduler scheduler({}, mesh.axis("world"));
    CHECK(scheduler.shard_count() == 1);
    CHECK(scheduler.replicate_count() == 2);
    std::vector<float> data(10, static_cast<float>(world.rank() + 1));
    scheduler.all_reduce(data, {}).synchronize();
    CHECK(data[9] == 3.0f);
  });
  CHECK_THROWS_AS(Scheduler({}, {}), atoll::Error);
}

TEST_CASE("all_reduces of one size in another order are not summed with each other") {
  const auto errors = atoll_test::on_threads(2, [](atoll::World& world) {
    const Mesh mesh = Mesh::make(world, {1, 2});
    Scheduler scheduler({}, mesh.axis("world"), {.backend = "host"});
    std::vector<float> bias(10, 1.0f), scale(10, 1.0f);
    scheduler.all_reduce(bias, {}, "bias").synchronize();
    CHECK(bias[9] == 2.0f);
    if (world.rank() == 0) {
      scheduler.all_reduce(bias, {}, "bias").synchronize();
    } else {
      scheduler.all_reduce(scale, {}, "scale").synchronize();
    }
    return std::string("no error");
  });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("all_reduce 1 (10 x f32, sum, \"bias\")") != std::string::npos);
    CHECK(error.find("all_reduce 1 (10 x f32, sum, \"scale\")") != std::string::npos);
  }
}

TEST_CASE("a bucket is summed over ranks while compute continues with backward") {
  atoll_test::run_thread_ranks(2, [](atoll::World& world) {
    const Mesh mesh = Mesh::make(world, {2, 1});
    Scheduler scheduler(mesh.axis("shard"), mesh.axis("replicate"));
    const std::vector<std::uint64_t> counts{3000, 3000};
    const auto plan = atoll::plan_buckets(counts, DType::f32, 16384);
    REQUIRE(plan.buckets.size() == 2);
    std::vector<atoll::Buffer> memory;
    for (const auto& bucket : plan.buckets) {
      memory.push_back(scheduler.allocate(bucket.elements * sizeof(float), {Lane::outer}));
    }
    std::promise<void> gate;
    auto compute = scheduler.device().stream({.name = "compute"});
    const auto write = [&](std::size_t bucket) {
      auto* const first = memory[bucket].view(DType::f32).as<float>();
      compute.enqueue([first, value = static_cast<float>(world.rank() + 1)] {
        std::fill(first, first + 3000, value);
      });
      return compute.record();
    };
    const auto first = scheduler.all_reduce(memory[0].view(DType::f32), write(0));
    compute.enqueue([open = gate.get_future().share()] { open.wait(); });
    const auto second = scheduler.all_reduce(memory[1].view(DType::f32), write(1));
    first.synchronize();
    CHECK_FALSE(second.done());
    gate.set_value();
    second.wait(compute);
    compute.synchronize();
    for (const auto& bucket : memory) {
      const auto* const sums = bucket.view(DType::f32).as<float>();
      CHECK(std::all_of(sums, sums + 3000, [](float v) { return v == 3.0f; }));
    }
  });
}

TEST_CASE(
    "in flight: an operation waits on its stream for the oldest releases; the host does not wait") {
  Alone one({.outer = 200});
  std::promise<void> gate;
  const Event before = one.compute.enqueue_and_record([] {});
  one.compute.enqueue([open = gate.get_future().share()] { open.wait(); });
  const Event behind = one.compute.record();

  const auto first = one.reduce(one.bytes(100));
  one.scheduler.release(Lane::outer, before);
  const auto second = one.reduce(one.bytes(100));
  one.scheduler.release(Lane::outer, behind);
  const auto third = one.reduce(one.bytes(100));  // starts when the bytes of `first` are released
  third.synchronize();
  one.scheduler.release(Lane::outer, {});
  const auto fourth = one.reduce(one.bytes(100));  // starts when the bytes of `second` are released
  CHECK(first.done());
  CHECK(second.done());
  CHECK_FALSE(fourth.done());
  // Other lanes continue, because the limit applies to one lane only.
  one.scheduler.all_gather(one.bytes(4000), one.bytes(4000), {}).synchronize();
  gate.set_value();
  fourth.synchronize();
  one.scheduler.synchronize();
}

TEST_CASE("in flight: an operation above the limit runs alone, and without a limit nothing waits") {
  Alone one({.outer = 200});
  one.reduce(one.bytes(150));
  one.scheduler.release(Lane::outer, {});
  one.reduce(one.bytes(1000)).synchronize();
  one.scheduler.release(Lane::outer, {});
  one.reduce(one.bytes(200)).synchronize();
  one.reduce(one.bytes(0)).synchronize();

  Alone free({});
  for (int i = 0; i < 100; ++i) free.reduce(free.bytes(4000));
  free.scheduler.release(Lane::outer, {});  // release() has no effect, because there is no limit
  free.scheduler.synchronize();
}

TEST_CASE("in flight: an operation that could never start throws when it is called") {
  Alone one({.gather = 100, .outer = 200});
  one.reduce(one.bytes(150));
  CHECK_THROWS_WITH_AS(
      one.reduce(one.bytes(100)),
      "Scheduler: 100 more bytes do not fit on the lane outer, which has 150 of at "
      "most 200 bytes in flight: call release() first",
      atoll::Error);
  one.scheduler.release(Lane::outer, {});
  CHECK_THROWS_WITH_AS(one.scheduler.release(Lane::outer, {}),
                       "Scheduler: release() on the lane outer without an unreleased operation",
                       atoll::Error);
  CHECK_THROWS_AS(one.scheduler.release(Lane::gather, {}), atoll::Error);
  one.reduce(one.bytes(100)).synchronize();
  one.gather(one.bytes(4)).synchronize();
  one.scheduler.synchronize();
}

TEST_CASE("in flight: gathers never hold more than the limit ahead of compute") {
  constexpr std::uint64_t n = 5000, unit = 2 * n * sizeof(float);
  std::atomic<std::uint64_t> most{0}, most_free{0};
  for (const bool limited : {true, false}) {
    atoll_test::run_thread_ranks(2, [&](atoll::World& world) {
      std::atomic<std::uint64_t> live{0}, highest{0};
      std::vector<float> shard(n, static_cast<float>(world.rank() + 1)), sum(n);
      std::vector<std::vector<float>> whole(40, std::vector<float>(2 * n));
      const Mesh mesh = Mesh::make(world, {1, 2});
      Scheduler scheduler(
          mesh.axis("shard"), mesh.axis("replicate"),
          {.max_in_flight = {.gather = limited ? 2 * unit : 0, .reduce = limited ? unit : 0}});
      auto compute = scheduler.device().stream({.name = "compute"});
      const auto view = [](std::vector<float>& of) {
        return View(of.data(), of.size(), DType::f32);
      };
      for (std::vector<float>& unit_memory : whole) {
        std::ignore = scheduler.all_gather(view(shard), view(unit_memory), {});
        const Event gathered = scheduler.run(Lane::gather, {}, [&](atoll::Stream& stream) {
          stream.enqueue([&] { highest = std::max(highest.load(), live += unit); });
        });
        compute.wait(gathered);
        compute.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
        std::ignore = scheduler.reduce_scatter(view(unit_memory), view(sum), compute.record());
        const Event summed = scheduler.run(Lane::reduce, {}, [](atoll::Stream&) {});
        scheduler.release(Lane::reduce, summed);
        compute.wait(summed);
        scheduler.release(Lane::gather, compute.enqueue_and_record([&] { live -= unit; }));
      }
      scheduler.synchronize();
      compute.synchronize();
      CHECK(std::all_of(sum.begin(), sum.end(),
                        [&](float v) { return v == 2.0f * static_cast<float>(world.rank() + 1); }));
      auto& all = limited ? most : most_free;
      if (world.rank() == 0) all = highest.load();
    });
  }
  CHECK(most <= 2 * unit);
  // Without the limit on bytes in flight, gathers run further ahead.
  CHECK(most_free > 2 * unit);
}

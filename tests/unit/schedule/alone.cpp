// Tests of a Scheduler without an engine.
#include <doctest/doctest.h>

#include <algorithm>
#include <future>
#include <string>
#include <vector>

#include "atoll/schedule.hpp"
#include "thread_ranks.hpp"
#include "unit/error_text.hpp"
#include "unit/rank_reports.hpp"

using atoll::DType;
using atoll::Lane;
using atoll::Mesh;
using atoll::Scheduler;

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
    CHECK(atoll_test::has(error, {"all_reduce 1 (10 x f32, sum, \"bias\")",
                                  "all_reduce 1 (10 x f32, sum, \"scale\")"}));
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
      memory.push_back(scheduler.allocate(bucket.elements * sizeof(float), {Lane::replicate}));
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

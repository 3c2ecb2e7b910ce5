// Tests of the records that a scheduler makes of its collectives and waits.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "atoll/schedule.hpp"
#include "planted_delay.hpp"
#include "thread_ranks.hpp"

using namespace std::chrono_literals;
using atoll::Activity;
using atoll::Lane;
using atoll::TraceRecord;
using atoll_test::run_thread_ranks;

namespace {

constexpr std::size_t count = 512;

// The buffers of one rank, and the collectives of a step: gather, reduce-scatter, and all-reduce
// across replicas.
struct Step {
  explicit Step(const atoll::Mesh& mesh)
      : scheduler(mesh.axis("shard"), mesh.axis("replicate")),
        whole(scheduler.device().allocate(count * sizeof(float))),
        part(scheduler.device().allocate(count * sizeof(float))),
        compute(scheduler.device().stream({.name = "compute"})) {
    compute.zero(whole.data(), whole.bytes());
    compute.zero(part.data(), part.bytes());
  }
  atoll::View shard() const {
    return part.view(atoll::DType::f32)
        .part(0, count / static_cast<std::size_t>(scheduler.shard_count()));
  }
  void gather(std::string_view label) {
    const auto work =
        scheduler.all_gather(shard(), whole.view(atoll::DType::f32), compute.record(), label);
    scheduler.wait(compute, scheduler.record(Lane::gather), label);
  }
  // Starts reduce-scatter and all-reduce, without a wait for either.
  void reduce(std::string_view label) {
    const auto sum = scheduler.reduce_scatter(whole.view(atoll::DType::f32), shard(),
                                              scheduler.record(Lane::gather), label);
    const auto replicate = scheduler.all_reduce(shard(), scheduler.record(Lane::reduce), label);
  }
  std::vector<TraceRecord> take() {
    compute.synchronize();
    scheduler.synchronize();
    auto log = scheduler.take_records();
    CHECK(log.left_out == 0);
    return log.records;
  }

  atoll::Scheduler scheduler;
  atoll::Buffer whole, part;
  atoll::Stream compute;
};

std::vector<TraceRecord> of(const std::vector<TraceRecord>& records, Activity activity) {
  std::vector<TraceRecord> found;
  std::ranges::copy_if(records, std::back_inserter(found),
                       [&](const TraceRecord& record) { return record.activity == activity; });
  return found;
}

}  // namespace

TEST_CASE("a late reduction delays no gather") {
  atoll_test::plant_delay(ATOLL_REDUCE_SCATTER, 1, 0, 300);
  run_thread_ranks(
      2,
      [](atoll::World& world) {
        Step step(atoll::Mesh::make(world, {1, 2}));
        const auto other = step.scheduler.device().allocate(count * sizeof(float));
        step.compute.zero(other.data(), other.bytes());
        const auto whole = other.view(atoll::DType::f32);
        const std::uint64_t n = count / 2;
        step.reduce("late");
        const auto work = step.scheduler.all_gather(
            whole.part(n * static_cast<std::uint64_t>(step.scheduler.shard_index()), n), whole,
            step.compute.record(), "next");
        const auto records = step.take();
        const auto gathers = of(records, Activity::all_gather);
        const auto reductions = of(records, Activity::reduce_scatter);
        REQUIRE(gathers.size() == 1);
        REQUIRE(reductions.size() == 1);
        CHECK(gathers[0].end_ns < reductions[0].end_ns);
      },
      atoll_test::use_delay_backend);
  atoll_test::plant_delay(-1, 1, 0, 0);
}

TEST_CASE("every collective is recorded with bytes, axis and times") {
  std::mutex mutex;
  run_thread_ranks(4, [&](atoll::World& world) {
    Step step(atoll::Mesh::make(world, {2, 2}));
    step.gather("a");
    step.reduce("b");
    const auto records = step.take();
    const std::lock_guard lock(mutex);
    const auto check = [&](Activity activity, std::string row, std::string axis, std::string label,
                           std::uint64_t bytes) {
      const auto found = of(records, activity);
      REQUIRE(found.size() == 1);
      CHECK(found[0].row == row);
      CHECK(found[0].axis == axis);
      CHECK(found[0].label == label);
      CHECK(found[0].bytes == bytes);
      CHECK(found[0].ranks == 2);
      CHECK(found[0].end_ns > found[0].begin_ns);
      return found[0];
    };
    const auto gather = check(Activity::all_gather, "gather", "shard", "a", 2048);
    const auto reduce = check(Activity::reduce_scatter, "reduce", "shard", "b", 2048);
    const auto replicate = check(Activity::all_reduce, "replicate", "replicate", "b", 1024);
    CHECK(gather.end_ns <= reduce.begin_ns);
    CHECK(reduce.end_ns <= replicate.begin_ns);
    CHECK(replicate.waited_ns == 0);  // compute has not waited for the all-reduce
    CHECK(of(records, Activity::work).empty());
    // No records are left, because the first call has taken them all.
    CHECK(step.scheduler.take_records().records.empty());
  });
}

TEST_CASE("on an axis of one rank no collective is recorded") {
  run_thread_ranks(1, [&](atoll::World& world) {
    Step step(atoll::Mesh::make(world, {1, 1}));
    step.gather("a");
    step.reduce("a");
    for (const auto& record : step.take()) CHECK(record.activity == Activity::wait);
  });
}

TEST_CASE("work is recorded only with Recording::work") {
  run_thread_ranks(1, [&](atoll::World& world) {
    Step step(atoll::Mesh::make(world, {1, 1}));
    const auto span = [&] {
      const auto begin = step.scheduler.begin_work(step.compute);
      step.compute.enqueue([] { std::this_thread::sleep_for(5ms); });
      step.scheduler.end_work(step.compute, begin, "forward", "layers.0");
      const auto cast = [](atoll::Stream& lane) {
        lane.enqueue([] { std::this_thread::sleep_for(1ms); });
      };
      step.scheduler.run(Lane::reduce, {}, cast, "cast");
    };
    span();
    CHECK(of(step.take(), Activity::work).empty());
    step.scheduler.set_recording(atoll::Recording::work);
    span();
    step.scheduler.set_recording(atoll::Recording::collectives);
    span();
    const auto records = of(step.take(), Activity::work);
    REQUIRE(records.size() == 2);
    CHECK(records[0].row == "compute");
    CHECK(records[0].label == "forward layers.0");
    CHECK(records[0].end_ns - records[0].begin_ns >= 5'000'000);
    CHECK(records[1].row == "reduce");
    CHECK(records[1].label == "cast");
  });
}

// The second of three gathers takes 50 ms longer. The wait is attributed to that gather, and not to
// its neighbours, even if compute waits only for the last gather.
TEST_CASE("a wait of compute is attributed to the collective that caused it") {
  std::mutex mutex;
  for (const bool each : {true, false}) {
    CAPTURE(each);
    atoll_test::plant_delay(ATOLL_ALL_GATHER, 3, 1, 50);
    run_thread_ranks(
        2,
        [&](atoll::World& world) {
          Step step(atoll::Mesh::make(world, {1, 2}));
          for (const char* label : {"a", "b", "c"}) {
            if (each) {
              step.gather(label);
            } else {
              const auto work = step.scheduler.all_gather(
                  step.shard(), step.whole.view(atoll::DType::f32), atoll::Event(), label);
            }
          }
          step.scheduler.wait(step.compute, step.scheduler.record(Lane::gather), "c");
          const auto records = step.take();
          const auto gathers = of(records, Activity::all_gather);
          const std::lock_guard lock(mutex);
          REQUIRE(gathers.size() == 3);
          CHECK(gathers[1].waited_ns >= 45'000'000);
          CHECK(gathers[1].waited_ns <= gathers[1].end_ns - gathers[1].begin_ns);
          CHECK(gathers[0].waited_ns < 45'000'000);
          CHECK(gathers[2].waited_ns < 45'000'000);
          const auto waits = of(records, Activity::wait);
          CHECK(std::ranges::any_of(waits, [&](const TraceRecord& wait) {
            return wait.row == "compute" && wait.label == (each ? "gather b" : "gather c") &&
                   wait.end_ns - wait.begin_ns >= gathers[1].waited_ns;
          }));
        },
        atoll_test::use_delay_backend);
  }
  atoll_test::plant_delay(-1, 1, 0, 0);
}

TEST_CASE(
    "a wait for the all-reduce across replicas is attributed to the reduce-scatter before it") {
  std::mutex mutex;
  atoll_test::plant_delay(ATOLL_REDUCE_SCATTER, 1, 0, 50);
  run_thread_ranks(
      4,
      [&](atoll::World& world) {
        Step step(atoll::Mesh::make(world, {2, 2}));
        step.reduce("a");
        step.scheduler.wait(step.compute, step.scheduler.record(Lane::replicate), "a");
        step.reduce("b");
        const auto reductions = of(step.take(), Activity::reduce_scatter);
        const std::lock_guard lock(mutex);
        REQUIRE(reductions.size() == 2);
        CHECK(reductions[0].waited_ns >= 45'000'000);
        // The second reduction starts after compute has waited, so compute does not wait for it.
        CHECK(reductions[1].waited_ns == 0);
      },
      atoll_test::use_delay_backend);
  atoll_test::plant_delay(-1, 1, 0, 0);
}

TEST_CASE("a scheduler keeps the newest records and all incomplete records") {
  run_thread_ranks(1, [](atoll::World& world) {
    Step step(atoll::Mesh::make(world, {1, 1}));
    atoll::Scheduler& scheduler = step.scheduler;
    scheduler.set_recording(atoll::Recording::work);
    constexpr std::size_t kept = 16'384, more = 5;
    for (std::size_t i = 0; i < kept + more; ++i) {
      scheduler.end_work(step.compute, scheduler.begin_work(step.compute), std::to_string(i));
    }
    step.compute.synchronize();
    std::mutex gate;
    gate.lock();
    const auto begin = scheduler.begin_work(step.compute);
    step.compute.enqueue([&] { const std::lock_guard lock(gate); });
    scheduler.end_work(step.compute, begin, "open");
    const auto first = scheduler.take_records();
    CHECK(first.left_out == more + 1);
    REQUIRE(first.records.size() == kept - 1);
    CHECK(first.records.front().label == std::to_string(more + 1));
    gate.unlock();
    step.compute.synchronize();
    const auto second = scheduler.take_records();
    CHECK(second.left_out == 0);
    REQUIRE(second.records.size() == 1);
    CHECK(second.records[0].label == "open");
  });
}

// Tests that compute hides communication, by measuring how long compute waits. The bounds are wide,
// because the test may share its machine with other processes. tests/bench/overlap measures the
// time that overlap saves.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "overlap_run.hpp"

using namespace atoll_test;

namespace {

// Each member is the minimum over many steps and two ranks, because other processes on the machine
// can only add time.
struct Reported {
  double waited_ms = 1e9;   // how long compute waited for the third gather
  double exposed_ms = 1e9;  // exposed communication of the step
};

double waited_for_third_gather_ms(const std::vector<atoll::TraceRecord>& records) {
  int gathers = 0;
  for (const auto& record : records) {
    if (record.activity != atoll::Activity::all_gather || ++gathers < 3) continue;
    return static_cast<double>(record.waited_ns) / 1e6;
  }
  throw std::runtime_error("a step has fewer than three gathers");
}

Reported report_of_uncovered_gather(std::int64_t planted_ms) {
  const OverlapRun run{.units = 3, .compute = std::chrono::milliseconds(10)};
  constexpr std::uint64_t gathers =
      5;  // gathers per step: 3 in forward, and 2 in backward, where one unit is still unsharded
  plant_delay(planted_ms > 0 ? ATOLL_ALL_GATHER : -1, gathers, 2, planted_ms);
  std::mutex mutex;
  Reported least;
  run_thread_ranks(
      2,
      [&](atoll::World& world) {
        atoll::fsdp::Options options;
        options.strategy = atoll::fsdp::Strategy::full_shard;
        options.prefetch = 0;
        atoll::fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}), options);
        const std::vector<std::string> order = {"unit.0", "unit.1", "unit.2"};
        for (const auto& name : order) engine.add_unit(name, {{"w", {20'000}, {}}});
        engine.seal(order);
        engine.initialize(1);
        auto compute = engine.device().stream({.name = "compute"});
        for (int step = 0; step < 12; ++step) {
          world.barrier();
          const auto before = compute.exposed_communication();
          overlap_micro_batch(engine, run, 0, compute);
          engine.wait_gradients(compute);
          engine.parameters_changed(compute);
          compute.synchronize();
          const std::chrono::duration<double, std::milli> exposed =
              compute.exposed_communication() - before;
          const double waited =
              waited_for_third_gather_ms(engine.scheduler().take_records().records);
          const std::lock_guard lock(mutex);
          least.exposed_ms = std::min(least.exposed_ms, exposed.count());
          least.waited_ms = std::min(least.waited_ms, waited);
        }
      },
      use_delay_backend);
  plant_delay(-1, 1, 0, 0);
  return least;
}

}  // namespace

TEST_CASE("a delay in a prefetched gather hides behind compute") {
  const auto figures = run_overlap({.prefetch = 1, .planted_ms = 50});
  MESSAGE("exposed ", figures.exposed_ms, " ms of a step of ", figures.step_ms, " ms");
  CHECK(figures.exposed_ms < 35.0);
}

TEST_CASE("without prefetch the same delay is exposed") {
  const auto figures = run_overlap({.prefetch = 0, .planted_ms = 50});
  MESSAGE("exposed ", figures.exposed_ms, " ms of a step of ", figures.step_ms, " ms");
  CHECK(figures.exposed_ms >= 49.0);
}

TEST_CASE("the reported wait for a delay without overlap is the delay, within 10 %") {
  constexpr double planted = 50;
  const Reported without = report_of_uncovered_gather(0);
  const Reported with = report_of_uncovered_gather(static_cast<std::int64_t>(planted));
  MESSAGE("waited ", with.waited_ms, " ms for the gather, ", without.waited_ms,
          " without; exposed ", with.exposed_ms, " ms, ", without.exposed_ms, " without");
  CHECK(with.waited_ms == doctest::Approx(planted).epsilon(0.1));
  CHECK(with.exposed_ms >= 0.9 * planted);
  if (without.exposed_ms > 2) {
    MESSAGE(
        "other processes keep the cores busy, so the exposed time cannot be compared with the "
        "delay");
    return;
  }
  CHECK(with.exposed_ms - without.exposed_ms == doctest::Approx(planted).epsilon(0.1));
}

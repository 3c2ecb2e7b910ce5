// A training step whose compute takes a known time, to see what of communication it hides. Compute
// sleeps, so that the figures do not depend on how many cores the machine has to spare.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "atoll/fsdp.hpp"
#include "planted_delay.hpp"
#include "thread_ranks.hpp"

namespace atoll_test {

struct OverlapRun {
  int units = 6;
  int prefetch = 1;
  int steps = 5;
  std::chrono::milliseconds compute{60};  // of one unit, forward or backward
  std::int64_t planted_ms = 0;            // in the gather of the third unit in forward
};

struct OverlapFigures {
  double step_ms = 0;     // median over steps, of the slowest rank
  double exposed_ms = 0;  // compute waiting for communication, of the same step
};

inline void overlap_step(atoll::fsdp::Engine& engine, const OverlapRun& run,
                         atoll::Stream& compute) {
  auto pass = engine.begin({}, compute);
  const auto work = [&] {
    compute.enqueue([time = run.compute] { std::this_thread::sleep_for(time); });
  };
  for (const auto& unit : engine.units()) {
    const auto w = pass.forward(*unit);
    work();
  }
  for (auto unit = engine.units().rbegin(); unit != engine.units().rend(); ++unit) {
    const auto w = pass.backward(**unit);
    const auto gradient = w.grad("w").view;
    compute.zero(gradient.data, gradient.bytes());
    work();
  }
}

inline OverlapFigures run_overlap(const OverlapRun& run) {
  using Clock = std::chrono::steady_clock;
  const auto ms = [](auto duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
  };
  // A step gathers every unit forward, and all but the last, which is kept at the turn, backward.
  const auto gathers = static_cast<std::uint64_t>(2 * run.units - 1);
  plant_delay(run.planted_ms > 0 ? ATOLL_ALL_GATHER : -1, gathers, 2, run.planted_ms);
  std::mutex mutex;
  OverlapFigures slowest;
  run_thread_ranks(
      2,
      [&](atoll::World& world) {
        atoll::fsdp::Options options;
        options.strategy = atoll::fsdp::Strategy::full_shard;
        options.prefetch = run.prefetch;
        atoll::fsdp::Engine engine(atoll::Mesh::make(world, {1, 2}), options);
        std::vector<std::string> order;
        for (int u = 0; u < run.units; ++u) {
          order.push_back("unit." + std::to_string(u));
          engine.add_unit(order.back(), {{"w", {20'000}, {}}});
        }
        engine.freeze(order);
        auto compute = engine.device().stream({.name = "compute"});
        std::vector<std::pair<double, double>> steps;
        for (int step = 0; step < run.steps; ++step) {
          world.barrier();
          const auto start = Clock::now();
          const auto exposed = compute.exposed_communication();
          overlap_step(engine, run, compute);
          engine.wait_gradients(compute);
          engine.parameters_changed(compute);
          compute.synchronize();
          steps.emplace_back(ms(Clock::now() - start),
                             ms(compute.exposed_communication() - exposed));
        }
        std::sort(steps.begin(), steps.end());
        const auto [step_ms, exposed_ms] = steps[steps.size() / 2];
        const std::lock_guard lock(mutex);
        if (step_ms > slowest.step_ms) slowest = {step_ms, exposed_ms};
      },
      use_delay_backend);
  plant_delay(-1, 1, 0, 0);
  return slowest;
}

}  // namespace atoll_test

// Runs training steps in which compute and communication take a known time, to measure how much
// communication is hidden. Compute and planted delays only sleep, so the measured times do not
// depend on the number of idle cores.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"
#include "planted_delay.hpp"
#include "thread_ranks.hpp"

namespace atoll_test {

struct OverlapRun {
  enum class Update {
    none,
    after_all,    // all units are updated before the first gather of the next step
    unit_by_unit  // each gather waits only until its own unit is updated
  };
  int units = 6;
  int prefetch = 1;
  int reduce_buffers = 2;
  int steps = 5;
  int micro = 1;  // number of micro batches per step
  atoll::fsdp::Accumulation accumulation = atoll::fsdp::Accumulation::automatic;
  // Compute time of one unit, in forward and again in backward.
  std::chrono::milliseconds compute{60};
  std::int64_t gather_ms = 0;  // delay of every gather in milliseconds
  std::int64_t reduce_ms = 0;  // delay of every reduction in milliseconds
  // Delay in milliseconds of one gather, that of the third unit in forward.
  std::int64_t planted_ms = 0;
  std::int64_t elements = 20'000;  // number of parameter elements in one unit
  // Whether the parameters are reported as changed after each micro batch, so that no unit stays
  // gathered for the next micro batch.
  bool forgets = false;
  // Whether each micro batch is treated as a separate step.
  bool whole_steps = false;
  atoll::fsdp::Strategy strategy = atoll::fsdp::Strategy::full_shard;
  int replicas = 1;
  int shards = 2;
  int secondary_shards = 0;
  std::int64_t replicate_ms = 0;  // delay of every reduction across replicas, in milliseconds
  Update update = Update::none;
  bool in_backward = false;
  // Whether backward of a unit first repeats the forward of the unit. from_backward uses the
  // parameters that were gathered for backward. gathers_again first gathers them once more, as
  // engines do that reshard between recomputation and backward.
  enum class Recompute {
    none,
    from_backward,
    gathers_again
  } recompute = Recompute::none;
};

struct OverlapFigures {
  double step_ms = 0;  // time of a step on the slowest rank, median over all steps
  // Time for which compute waited for communication in the same step.
  double exposed_ms = 0;
};

// Gathers a unit once more, in addition to the gathers of the engine.
class SecondGather {
 public:
  SecondGather(const atoll::Mesh& mesh, std::int64_t elements)
      : comm_(atoll::Communicator::open(mesh.axis("shard"), {.name = "again"})),
        shard_(static_cast<std::size_t>(elements)),
        whole_(shard_.size() * static_cast<std::size_t>(mesh.shape().shard)) {}
  void run(atoll::Stream& compute) { comm_.all_gather(shard_, whole_, compute).wait(compute); }

 private:
  atoll::Communicator comm_;
  std::vector<float> shard_, whole_;
};

inline void overlap_micro_batch(atoll::fsdp::Engine& engine, const OverlapRun& run, int micro,
                                atoll::Stream& compute, SecondGather* again = nullptr) {
  const auto kind = atoll::fsdp::PassOptions::Kind::train;
  auto pass = run.whole_steps ? engine.begin({kind, 0, 1}, compute)
                              : engine.begin({kind, micro, run.micro}, compute);
  const auto work = [&] {
    compute.enqueue([time = run.compute] { std::this_thread::sleep_for(time); });
  };
  for (const auto& unit : engine.units()) {
    const auto w = pass.forward(*unit);
    work();
  }
  for (auto unit = engine.units().rbegin(); unit != engine.units().rend(); ++unit) {
    if (again != nullptr) again->run(compute);
    const auto w = pass.backward(**unit);
    if (run.recompute != OverlapRun::Recompute::none) work();
    const auto gradient = w.grad("w").view;
    compute.zero(gradient.data, gradient.bytes());
    work();
  }
}

inline void plant_all(const OverlapRun& run) {
  plant_delay(-1, 1, 0, 0);
  // Number of gathers per step: forward gathers every unit, and backward gathers all units except
  // those that are still gathered when backward begins.
  const auto gathers = static_cast<std::uint64_t>(2 * run.units - 1 - run.prefetch);
  if (run.planted_ms > 0) plant_delay(ATOLL_ALL_GATHER, gathers, 2, run.planted_ms);
  if (run.gather_ms > 0) plant_delay(ATOLL_ALL_GATHER, 1, 0, run.gather_ms);
  if (run.reduce_ms > 0) plant_delay(ATOLL_REDUCE_SCATTER, 1, 0, run.reduce_ms);
  if (run.replicate_ms > 0) plant_delay(ATOLL_ALL_REDUCE, 1, 0, run.replicate_ms);
}

inline OverlapFigures overlap_rank(atoll::World& world, const OverlapRun& run) {
  using Clock = std::chrono::steady_clock;
  using Update = OverlapRun::Update;
  const auto ms = [](auto duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
  };
  atoll::fsdp::Options options;
  options.strategy = run.strategy;
  options.secondary_shards = run.secondary_shards;
  options.prefetch = run.prefetch;
  options.reduce_buffers = run.reduce_buffers;
  options.accumulation = run.accumulation;
  const auto mesh = atoll::Mesh::make(world, {run.replicas, run.shards});
  atoll::fsdp::Engine engine(mesh, options);
  std::optional<SecondGather> again;
  if (run.recompute == OverlapRun::Recompute::gathers_again) {
    again.emplace(mesh, (run.elements + 1) / 2);
  }
  std::vector<std::string> order;
  for (int u = 0; u < run.units; ++u) {
    order.push_back("unit." + std::to_string(u));
    engine.add_unit(order.back(), {{"w", {run.elements}, {}}});
  }
  engine.seal(order);
  engine.initialize(1);
  std::optional<atoll::fsdp::Optimizer> optimizer;
  if (run.update != Update::none) {
    optimizer.emplace(engine,
                      atoll::fsdp::OptimizerOptions{.max_norm = 0, .skip_nonfinite = false});
  }
  auto compute = engine.device().stream({.name = "compute"});
  // Steps follow each other without a pause, as in training. So communication that one step leaves
  // to the next is measured as well.
  const auto begin = [&] {
    world.barrier();
    return std::pair(Clock::now(), compute.exposed_communication());
  };
  std::vector<std::pair<double, double>> steps;
  auto [start, exposed] = begin();
  for (int step = 0; step <= run.steps; ++step) {
    if (run.in_backward) optimizer->update_in_backward(0.1f);
    for (int micro = 0; micro < run.micro; ++micro) {
      if (run.forgets && micro > 0) engine.parameters_changed(compute);
      overlap_micro_batch(engine, run, micro, compute, again ? &*again : nullptr);
    }
    if (optimizer) {
      optimizer->step(0.1f, compute);
      if (run.update == Update::after_all) engine.parameters_changed(compute);
    } else {
      engine.wait_gradients(compute);
      engine.parameters_changed(compute);
    }
    if (run.update == Update::none || step == 0 || step == run.steps) compute.synchronize();
    if (run.update != Update::none && step > 0 && step < run.steps) continue;
    if (run.update == Update::none) {
      steps.emplace_back(ms(Clock::now() - start), ms(compute.exposed_communication() - exposed));
    } else if (step == run.steps) {
      steps.emplace_back(ms(Clock::now() - start) / run.steps,
                         ms(compute.exposed_communication() - exposed) / run.steps);
    }
    std::tie(start, exposed) = begin();
  }
  std::sort(steps.begin(), steps.end());
  const auto [step_ms, exposed_ms] = steps[steps.size() / 2];
  return {step_ms, exposed_ms};
}

inline OverlapFigures run_overlap(const OverlapRun& run) {
  plant_all(run);
  std::mutex mutex;
  OverlapFigures slowest;
  run_thread_ranks(
      run.replicas * run.shards,
      [&](atoll::World& world) {
        const OverlapFigures figures = overlap_rank(world, run);
        const std::lock_guard lock(mutex);
        if (figures.step_ms > slowest.step_ms) slowest = figures;
      },
      use_delay_backend);
  plant_delay(-1, 1, 0, 0);
  return slowest;
}

}  // namespace atoll_test

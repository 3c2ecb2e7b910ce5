// A model that is small enough to check by hand. Each sample pulls every weight towards another
// target, so the gradient of weight i is the sum over samples of (w[i] - target(sample, i)). Any
// error therefore comes from the engine: gathering, sharding, reduction, accumulation or order.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"
#include "thread_ranks.hpp"

namespace atoll_test {

struct ToyParam {
  std::int64_t size;
  bool trainable = true;
  std::optional<atoll::DType> dtype{};
};

struct ToyUnit {
  std::string name;
  std::vector<ToyParam> params;
};

struct ToyRun {
  std::vector<ToyUnit> units;
  std::vector<std::string> order;
  int samples = 12;  // samples per step, divided among ranks and micro batches
  int micro = 1;
  int steps = 4;
  bool figures = true;       // true: the host waits for norm and sum of each step
  bool updates = true;       // false: the optimizer makes no steps
  bool in_backward = false;  // true: calls update_in_backward()
  bool beside = false;       // true: updates during the next pass
  bool alternates = false;   // true: `beside` only in every second step
  atoll::fsdp::Options engine;
  atoll::fsdp::OptimizerOptions optimizer;
};

using Weights = std::map<std::string, std::vector<float>>;

struct ToyResult {
  Weights weights;
  std::vector<float> norms;  // gradient norm of each step
  std::vector<double> sums;  // sum of all weights that forward read, one per step
};

inline float toy_target(int sample, std::uint64_t element) {
  const std::uint64_t mixed =
      (static_cast<std::uint64_t>(sample) + 1) * 2654435761u + element * 40503u;
  return static_cast<float>(mixed % 1000) / 500.0f - 1.0f;
}

inline std::vector<ToyUnit> toy_units() {
  return {{"embed", {{101}}},
          {"layers.0", {{31}, {64}, {17}}},
          {"layers.1", {{31}, {64}, {17}}},
          {"head", {{20'011}, {3}}}};  // large enough to be sharded over all four ranks
}
// A model with frozen parameters, a frozen unit, and two dtypes in one unit.
inline std::vector<ToyUnit> toy_mixed_units() {
  constexpr auto f32 = atoll::DType::f32, bf16 = atoll::DType::bf16;
  return {{"embed", {{101, false}}},
          {"layers.0", {{31}, {67, false, bf16}, {17, true, bf16}, {4099, true, f32}}},
          {"layers.1", {{31, true, f32}, {61, false, f32}, {17}}},
          {"head", {{20'011}, {3, false}}}};
}
inline std::vector<std::string> toy_order() { return {"embed", "layers.0", "layers.1", "head"}; }

// SGD that does not clip gradients: a step subtracts rate * gradient.
inline constexpr atoll::fsdp::OptimizerOptions plain_sgd{
    .kind = atoll::fsdp::OptimizerOptions::Kind::sgd, .max_norm = 0};

// Adds units of one parameter "w" each, and seals the engine with them in this order.
inline void add_units(atoll::fsdp::Engine& engine, std::initializer_list<const char*> names,
                      std::int64_t elements) {
  for (const char* name : names) engine.add_unit(name, {{"w", {elements}}});
  engine.seal({names.begin(), names.end()});
}

inline void set_all(atoll::fsdp::Engine& engine, float value) {
  engine.assign([=](const auto&, std::span<float> out) { std::ranges::fill(out, value); });
}

// Adds the units of the run, whose parameters are p0, p1, ..., and seals the engine.
inline void add_toy_units(atoll::fsdp::Engine& engine, const ToyRun& run) {
  for (const auto& unit : run.units) {
    std::vector<atoll::fsdp::ParamSpec> params;
    for (const auto& [size, trainable, dtype] : unit.params) {
      params.push_back(
          {"p" + std::to_string(params.size()), {size}, {0.0f, 1.0f}, trainable, dtype});
    }
    engine.add_unit(unit.name, std::move(params));
  }
  engine.seal(run.order);
}

// Returns the parameters by "UNIT.PARAMETER".
inline Weights weights_of(atoll::fsdp::Engine& engine) {
  Weights weights;
  engine.visit([&](const auto& unit, const auto& param, std::span<const float> values) {
    weights[unit.name() + "." + param.name].assign(values.begin(), values.end());
  });
  return weights;
}

// Runs a pass over all units in order and back. Compute writes `value` to every gradient.
inline void run_pass(atoll::fsdp::Engine& engine, atoll::Stream& compute, float value,
                     const atoll::fsdp::PassOptions& options = {}) {
  auto pass = engine.begin(options, compute);
  for (const auto& unit : engine.units()) const auto w = pass.forward(*unit);
  for (auto unit = engine.units().rbegin(); unit != engine.units().rend(); ++unit) {
    const auto w = pass.backward(**unit);
    for (const auto& param : (*unit)->params()) {
      if (!param.trainable) continue;
      compute.enqueue([view = w.grad(param.name).view, value] {
        std::fill_n(view.as<float>(), view.count, value);
      });
    }
  }
}

// Returns an element of a parameter as f32.
inline float toy_weight(const atoll::View& view, std::uint64_t i) {
  if (view.dtype == atoll::DType::f16) return atoll::to_float(view.as<atoll::float16>()[i]);
  return view.dtype == atoll::DType::f32 ? view.as<float>()[i]
                                         : atoll::to_float(view.as<atoll::bfloat16>()[i]);
}

inline void toy_micro_batch(atoll::fsdp::Engine& engine, const ToyRun& run,
                            const std::vector<int>& samples, atoll::fsdp::PassOptions options,
                            atoll::Stream& compute, double* sum) {
  auto pass = engine.begin(options, compute);
  for (const auto& name : run.order) {
    auto& unit = engine.unit(name);
    auto w = pass.forward(unit);
    for (const auto& param : unit.params()) {
      compute.enqueue([view = w[param.name], sum] {
        for (std::uint64_t i = 0; i < view.count; ++i)
          *sum += static_cast<double>(toy_weight(view, i));
      });
    }
  }
  for (auto name = run.order.rbegin(); name != run.order.rend(); ++name) {
    auto& unit = engine.unit(*name);
    auto w = pass.backward(unit);
    for (const auto& param : unit.params()) {
      if (w.grad(param.name).mode == atoll::fsdp::WriteMode::none) continue;
      compute.enqueue([weights = w[param.name], gradient = w.grad(param.name), samples] {
        float* out = gradient.view.as<float>();
        for (std::uint64_t i = 0; i < weights.count; ++i) {
          float g = 0;
          for (const int sample : samples) g += toy_weight(weights, i) - toy_target(sample, i);
          out[i] = gradient.mode == atoll::fsdp::WriteMode::overwrite ? g : out[i] + g;
        }
      });
    }
  }
}

inline ToyResult run_toy(const atoll::Mesh& mesh, const ToyRun& run,
                         const atoll::Device& device = atoll::Device::cpu()) {
  namespace fsdp = atoll::fsdp;
  auto options = run.engine;
  options.device = device;
  fsdp::Engine engine(mesh, options);
  add_toy_units(engine, run);
  engine.initialize(42);
  fsdp::Optimizer optimizer(engine, run.optimizer);
  double sum = 0;  // sum of the weights that forward reads, written by tasks on `compute`
  auto compute = engine.device().stream({.name = "compute"});
  ToyResult result;
  const auto& axes = options.axes;  // only the engine's ranks share the samples
  const auto own = mesh.has_axis(axes.replicate) ? mesh.sub({axes.replicate, axes.shard})
                                                 : mesh.sub({axes.shard});
  const int ranks = own.axis("world").size(), rank = own.axis("world").index;
  for (int step = 0; step < run.steps; ++step) {
    // Reset only if the host waits; otherwise compute may still add to `sum`.
    if (run.figures) sum = 0;
    for (int micro = 0; micro < run.micro; ++micro) {
      // This rank's samples; the stride gives some ranks one sample more than others.
      std::vector<int> mine;
      for (int s = rank + ranks * micro; s < run.samples; s += ranks * run.micro) mine.push_back(s);
      if (run.in_backward && micro + 1 == run.micro) optimizer.update_in_backward(0.01f);
      toy_micro_batch(engine, run, mine, {fsdp::PassOptions::Kind::train, micro, run.micro},
                      compute, &sum);
    }
    if (run.updates)
      optimizer.step(0.01f, compute,
                     {.beside_next_pass = run.beside && !(run.alternates && step % 2 == 1)});
    if (!run.figures) continue;
    result.norms.push_back(optimizer.grad_norm());
    compute.synchronize();
    result.sums.push_back(sum);
  }
  compute.synchronize();
  result.weights = weights_of(engine);
  return result;
}

// Runs the toy on shape.replicate * shape.shard ranks, which must get the same weights and norms.
// `device_of` returns the device of a rank.
inline ToyResult run_on(atoll::MeshShape shape, const ToyRun& run,
                        const std::function<atoll::Device(int rank)>& device_of = {},
                        const std::function<void(atoll::Config&)>& configure = {}) {
  std::mutex mutex;
  std::vector<ToyResult> results;
  const auto body = [&](atoll::World& world) {
    const auto device = device_of ? device_of(world.rank()) : atoll::Device::cpu();
    auto result = run_toy(atoll::Mesh::make(world, shape), run, device);
    const std::lock_guard lock(mutex);
    results.push_back(std::move(result));
  };
  run_thread_ranks(shape.replicate * shape.shard, body, configure);
  for (const ToyResult& result : results) {
    CHECK(result.weights == results[0].weights);
    CHECK(result.norms == results[0].norms);
  }
  return results[0];
}

}  // namespace atoll_test

// A step has three parts. First, when the gradient of a unit is final, its squares are summed in
// blocks, on the lane (communication stream) that reduced the gradient. Second, step() gathers the
// sums of the blocks of all shards and computes the norm and the clip factor. Third, step() updates
// unit by unit. It uses `compute` or, with StepOptions::beside_next_pass, `beside_forward`. Each
// gather of the next forward waits for the update of its unit, so the next backward, which writes
// gradients, follows all updates. After update_in_backward() each unit is updated on the stream
// `updates` as soon as its squares are summed.
#include "atoll/optimizer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/parse.hpp"
#include "device/ops.hpp"
#include "fsdp/gathering.hpp"
#include "fsdp/parameter_groups.hpp"
#include "fsdp/pass_state.hpp"
#include "fsdp/reducing.hpp"
#include "fsdp/setup.hpp"
#include "fsdp/step_comparison.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

std::uint64_t owned_elements(const UnitState& unit) {
  std::uint64_t sum = 0;
  for (const UnitBucket& bucket : unit.buckets) sum += bucket.gradient_elements();
  return sum;
}

void check(Engine& engine, const OptimizerOptions& options) {
  EngineAccess::setup(engine).check_planned("Optimizer");
  require(!EngineAccess::reducing(engine).has_on_final(),
          "Optimizer: the engine has another optimizer already");
  require(
      options.kind == OptimizerOptions::Kind::adamw || options.kind == OptimizerOptions::Kind::sgd,
      "Optimizer: OptimizerOptions::kind = {} is not a Kind", static_cast<int>(options.kind));
  require(options.decay == Decay::all || options.decay == Decay::matrices,
          "Optimizer: OptimizerOptions::decay = {} is not a Decay",
          static_cast<int>(options.decay));
  check_range(options.epsilon > 0, "epsilon", options.epsilon, "above 0");
  check_range(options.max_norm >= 0, "max_norm", options.max_norm, "0 (no clipping) or above");
  require(options.moment_dtype == DType::f32 || options.moment_dtype == DType::bf16,
          "Optimizer: moments cannot be {}: use f32 or bf16", name(options.moment_dtype));
  check_groups(EngineAccess::setup(engine), options);
}

void check_rate(std::string_view call, float learning_rate) {
  require(std::isfinite(learning_rate) && learning_rate >= 0,
          "{}: the learning rate {} is not finite and 0 or above", call, learning_rate);
}

// How the optimizer updates this rank's shard of a bucket.
struct BucketUpdate {
  std::vector<UpdateRange> ranges;  // neighbouring elements with equal settings form one range
  std::uint64_t rounding_key;       // the seed of stochastic rounding; 0: rounds to nearest
};

std::uint64_t rounding_key(const OptimizerOptions& options, const UnitState& unit,
                           const UnitBucket& bucket) {
  if (options.moment_dtype == DType::f32 || !options.stochastic_rounding) return 0;
  return fnv1a(fmt::format("{}/{}/{}", options.seed, unit.name, bucket.label())) | 1;
}

// Returns the elements of a range; an empty view stays empty.
View part_of(const View& view, const UpdateRange& range) {
  return view.count == 0 ? View() : view.part(range.first, range.count);
}

}  // namespace

struct Optimizer::Impl {
  Impl(Engine& engine_, OptimizerOptions options_)
      : engine(engine_),
        link(EngineAccess::link(engine_)),
        options(std::move(options_)),
        updates(engine.device().stream({.name = "update"})) {
    agree(setup.ranks, "Optimizer", [&] {
      check(engine, options);
      return declarations_of(options);
    });
    std::ranges::fill(outcome, 0.0);
    allocate_moments();
    plan_updates();
    allocate_norm();
    squared.assign(engine.units().size(), false);
    updated.assign(engine.units().size(), false);
    EngineAccess::reducing(engine).set_on_final(
        [this](const UnitState& unit, Stream& stream) { gradient_complete(unit, stream); });
  }

  ~Impl() {
    settle(done);
    if (*link == nullptr) return;  // the destructor of the engine has waited for the update stream
    setup.end_live_save();         // a live save reads the moments
    EngineAccess::reducing(engine).set_on_final(nullptr);
    setup.settings.clear();
    // Waits for the last step, which uses the moments and writes to `outcome`, and for sums of
    // squares that an abandoned step may still be computing.
    settle(scheduler);
    engine.memory().optimizer -= moment_bytes;
    engine.memory().staging -= norm_bytes;
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void allocate_moments() {
    if (options.kind == OptimizerOptions::Kind::sgd) return;
    const std::uint64_t bytes = gradient_elements(setup) * size_of(options.moment_dtype);
    if (!setup.options.plan_only) {
      moment1 = engine.device().allocate(bytes);
      moment2 = engine.device().allocate(bytes);
      first_moments = cut_by_bucket(setup, moment1, options.moment_dtype);
      second_moments = cut_by_bucket(setup, moment2, options.moment_dtype);
      setup.set_zero(moment1);
      setup.set_zero(moment2);
    }
    moment_bytes = 2 * bytes;
    engine.memory().optimizer += moment_bytes;
  }

  void plan_updates() {
    setup.settings = settings_of_all(setup, options);
    for (const auto& unit : engine.units()) {
      const UnitState& state = state_of(*unit);
      auto& of_unit = plan.emplace_back();
      for (std::size_t b = 0; b < state.buckets.size(); ++b) {
        of_unit.push_back({update_ranges(setup, state, b, options),
                           rounding_key(options, state, state.buckets[b])});
      }
    }
  }

  void allocate_norm() {
    const Device& device = engine.device();
    std::uint64_t blocks = 0;
    for (const auto& unit : engine.units()) {
      first_block.push_back(blocks);
      blocks += owned_elements(state_of(*unit)) / norm_block;
    }
    const auto shards = static_cast<std::uint64_t>(scheduler.shard_count());
    const std::uint64_t of_all = shards > 1 ? blocks * shards : 0;
    if (!setup.options.plan_only) {
      local_blocks = device.allocate(blocks * sizeof(double));
      result = device.allocate(outcome.size() * sizeof(double));
      reported = device.allocate(outcome.size() * sizeof(double));
      if (shards > 1) gathered_blocks = device.allocate(of_all * sizeof(double));
      for (const Buffer* buffer : {&local_blocks, &result, &reported, &gathered_blocks}) {
        setup.set_zero(*buffer);
      }
    }
    norm_bytes = (blocks + 2 * outcome.size() + of_all) * sizeof(double);
    engine.memory().staging += norm_bytes;
  }

  void gradient_complete(const UnitState& unit, Stream& stream) {
    stream.wait(known);  // waits until the last step has read local_blocks
    sum_squares(unit, stream);
    if (!in_backward) return;
    require(!updated[unit.index],
            "unit {}: an abandoned pass has already updated this unit: a step with "
            "update_in_backward() cannot begin again",
            unit.name);
    updates.wait(stream.record());
    update(unit, *in_backward, updates);
    updated[unit.index] = true;
  }

  void sum_squares(const UnitState& unit, Stream& stream) {
    std::uint64_t offset = first_block[unit.index];
    for (const UnitBucket& bucket : unit.buckets) {
      const std::uint64_t n = bucket.gradient.count / norm_block;
      if (n == 0) continue;
      setup.ops().sum_squares(stream, local_blocks.view(DType::f64).part(offset, n),
                              bucket.gradient);
      offset += n;
    }
    squared[unit.index] = true;
  }

  // Gathers the sums of squares of all shards' blocks.
  View gather_blocks(Stream& compute) {
    const View local = local_blocks.view(DType::f64);
    if (scheduler.shard_count() == 1 || local.count == 0) return local;
    const View gathered = gathered_blocks.view(DType::f64);
    const Work work = scheduler.all_gather(local, gathered, compute.record(), "norm");
    scheduler.wait(compute, scheduler.record(Lane::gather), "norm");
    return gathered;
  }

  // Writes norm and clip factor to `result`. If backward has updated units, writes only the norm,
  // to `reported`.
  void measure(Stream& compute, float gradient_scale) {
    DeviceOps& ops = setup.ops();
    const View blocks = gather_blocks(compute);
    const Stamp begin = scheduler.begin_work(compute);
    if (in_backward) {
      ops.clip_factor(compute, reported.view(DType::f64), blocks, {});
      compute.copy(&outcome[0], reported.data(), sizeof(double));
      compute.wait(updates.record());
      compute.copy(&outcome[1], result.view(DType::f64).part(1, 2).data, 2 * sizeof(double));
    } else {
      ops.clip_factor(compute, result.view(DType::f64), blocks,
                      {options.max_norm, options.skip_nonfinite, gradient_scale});
      compute.copy(outcome.data(), result.data(), result.bytes());
    }
    scheduler.end_work(compute, begin, "norm");
    known = compute.record();
  }

  void update(const UnitState& unit, float learning_rate, Stream& stream) {
    if (const auto& save = setup.live_save) {
      save->before_update(unit.index, stream);
    }
    const Stamp begin = scheduler.begin_work(stream);
    for (std::size_t b = 0; b < unit.buckets.size(); ++b) {
      if (!unit.buckets[b].trainable) continue;
      for (const UpdateRange& range : plan[unit.index][b].ranges) {
        update_range(unit, b, range, learning_rate * range.settings.learning_rate_scale, stream);
      }
    }
    scheduler.end_work(stream, begin, "update", unit.name);
    EngineAccess::gathering(engine).masters_updated(unit.index, stream.record(), Stale::trainable);
  }

  void update_range(const UnitState& unit, std::size_t bucket_index, const UpdateRange& range,
                    float learning_rate, Stream& stream) {
    DeviceOps& ops = setup.ops();
    const UnitBucket& bucket = unit.buckets[bucket_index];
    const double* factor = result.view(DType::f64).part(1, 1).as<double>();
    const double* steps = result.view(DType::f64).part(2, 1).as<double>();
    const View weights = part_of(bucket.master, range), gradient = part_of(bucket.gradient, range);
    const View low = part_of(bucket.compute_copy, range);
    const ParamSettings& settings = range.settings;
    switch (options.kind) {
      case OptimizerOptions::Kind::sgd:
        return ops.sgd(stream, {weights, gradient, low, learning_rate, settings.weight_decay,
                                factor, most_blocks});
      case OptimizerOptions::Kind::adamw:
        break;
    }
    // The index of the first element in the unsharded bucket, which seeds the stochastic rounding.
    const std::uint64_t first =
        bucket.master.count * static_cast<std::uint64_t>(scheduler.shard_index()) + range.first;
    ops.adamw(stream,
              {weights, gradient, part_of(first_moments[unit.index][bucket_index], range),
               part_of(second_moments[unit.index][bucket_index], range), low, learning_rate,
               settings.beta1, settings.beta2, options.epsilon, settings.weight_decay, steps,
               factor, plan[unit.index][bucket_index].rounding_key, first, most_blocks});
  }

  // Sums the squares of the units whose squares were not summed during backward.
  void finish_squares(Stream& compute) {
    for (const auto& unit : engine.units()) {
      if (!squared[state_of(*unit).index]) sum_squares(state_of(*unit), compute);
    }
    squared.assign(squared.size(), false);
  }

  // Updates the units that backward has not updated, in the order of use, so that the next pass can
  // begin before all units are updated.
  void finish_updates(float learning_rate, Stream& stream) {
    most_blocks = 0;  // a step that failed may have left a limit
    int units = 0;
    for (const std::size_t index : setup.plan.sequence) {
      const UnitState& unit = state_of(*engine.units()[index]);
      if (updated[index] || unit.size.gradient == 0) continue;
      updated[index] = true;
      update(unit, learning_rate, stream);
      // Forward waits for the first update and runs beside the others. The first unit is usually an
      // embedding, whose forward is short, so the second update has no limit either.
      if (++units == 2) most_blocks = blocks_beside;
    }
    most_blocks = 0;
    updated.assign(updated.size(), false);
    in_backward.reset();
  }

  // Throws those errors of step() that a rank finds without communication.
  void check_step(const StepValues& values, Stream& compute) {
    const float scale = values.gradient_scale;
    check_rate("Optimizer::step", values.learning_rate);
    require(std::isfinite(scale) && scale > 0,
            "Optimizer::step: gradient_scale = {} must be finite and above 0", scale);
    require(!in_backward || scale == 1.0f,
            "Optimizer::step: a gradient scale cannot be combined with update_in_backward(), which "
            "has already updated units without it");
    require(!in_backward || *in_backward == values.learning_rate,
            "Optimizer::step: the learning rate differs from the rate passed to "
            "update_in_backward()");
    PassState& pass = EngineAccess::pass(engine);
    pass.wait_gradients(compute, "Optimizer::step");
    pass.check_unused();
  }

  void set_steps(std::int64_t steps) {
    done.synchronize();
    outcome[2] = static_cast<double>(steps);
    Stream& stream = scheduler.stream(Lane::gather);
    stream.copy(result.data(), outcome.data(), result.bytes());
    stream.synchronize();
  }

  Engine& engine;
  EngineLink link;
  OptimizerOptions options;
  EngineSetup& setup = EngineAccess::setup(engine);
  Scheduler& scheduler = setup.scheduler;
  StepComparison comparison{setup.ranks};
  std::uint64_t moment_bytes = 0, norm_bytes = 0;  // planned bytes of moments and norms
  Buffer moment1, moment2;
  BucketParts first_moments, second_moments;    // empty for an optimizer without moments
  std::vector<std::vector<BucketUpdate>> plan;  // update of each bucket, by unit and bucket

  Buffer local_blocks;     // this rank's sums of squared gradients per block, by unit
  Buffer gathered_blocks;  // sums of squares per block, of all shards
  std::vector<std::uint64_t> first_block;  // first block of each unit in local_blocks
  Buffer result;                           // f64: norm, clip factor, number of steps
  Buffer reported;                         // f64: norm after updates in backward
  // CPU copy of norm, clip factor and number of steps, valid once `known` has happened. The copy
  // is in staging memory, because a GPU's copy to ordinary CPU memory would block the caller.
  Buffer outcome_memory = engine.device().allocate_staging(3 * sizeof(double));
  std::span<double, 3> outcome{static_cast<double*>(outcome_memory.data()), 3};
  Event known;
  Event done;  // happens when the last step is complete

  // True for each unit whose sums of squared gradients of this step are in local_blocks.
  std::vector<bool> squared;
  std::vector<bool> updated;  // true for each unit that this step has updated
  // Learning rate given to update_in_backward(); empty when it was not called.
  std::optional<float> in_backward;
  unsigned blocks_beside = 0;  // limit of thread blocks for updates beside the next pass
  unsigned most_blocks = 0;    // limit of thread blocks for the current update; 0: no limit
  Stream updates;              // stream of updates in backward
  // Stream of updates beside forward. It has a high priority, so that their few thread blocks get a
  // multiprocessor as soon as one is free. Empty until the first step that uses it.
  std::optional<Stream> beside_forward;
};

Optimizer::Optimizer(Engine& engine, OptimizerOptions options)
    : impl_(std::make_unique<Impl>(engine, std::move(options))) {}
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer::~Optimizer() = default;

Optimizer::Impl& Optimizer::impl() const {
  require(impl_ != nullptr,
          "this Optimizer was moved from: use the Optimizer that it was moved to");
  require(
      *impl_->link != nullptr,
      "the engine of this Optimizer has been destroyed: destroy the Optimizer before its Engine");
  return *impl_;
}

bool Optimizer::update_in_backward(float learning_rate) {
  Impl& impl = this->impl();
  const OneThread one(impl.setup.calling, "update_in_backward");
  check_rate("update_in_backward", learning_rate);
  if (impl.options.max_norm > 0 || impl.options.skip_nonfinite) return false;
  if (!impl.in_backward) {
    // Sets the clip factor to 1 and increments the number of steps.
    impl.updates.wait(impl.done);
    impl.setup.ops().clip_factor(impl.updates, impl.result.view(DType::f64),
                                 {impl.result.data(), 0, DType::f64}, {});
  } else if (std::ranges::count(impl.updated, true) > 0) {
    throw invalid(
        "update_in_backward: units have been updated since the last step(): the abandoned step "
        "cannot begin again");
  }
  impl.in_backward = learning_rate;
  impl.most_blocks = 0;  // a step that failed may have left a limit
  return true;
}

void Optimizer::step(float learning_rate, Stream& compute, StepOptions step_options) {
  Impl& impl = this->impl();
  const OneThread one(impl.setup.calling, "Optimizer::step");
  const StepValues values{learning_rate, step_options.gradient_scale};
  impl.comparison.add(values, [&] { impl.check_step(values, compute); });
  EngineAccess::pass(impl.engine).use_gradients();
  // Registers `compute` as a stream on which the caller may later write states, such as averages.
  EngineAccess::gathering(impl.engine).add_writer(compute);
  const bool beside = step_options.beside_next_pass;
  if (beside && !impl.beside_forward) {
    impl.beside_forward =
        impl.engine.device().stream({.name = "update", .priority = StreamPriority::high});
  }
  Stream& stream = beside ? *impl.beside_forward : compute;
  try {
    impl.finish_squares(compute);
    impl.measure(compute, values.gradient_scale);
    if (beside) stream.wait(compute.record());
    impl.blocks_beside = beside ? step_options.blocks_beside : 0;
    impl.finish_updates(learning_rate, stream);
  } catch (...) {
    if (beside) stream.wait(compute.record());
    impl.done = stream.record();  // a failed step may still be using the optimizer's memory
    throw;
  }
  impl.done = stream.record();
}

void Optimizer::wait_updates(Stream& stream) {
  Impl& impl = this->impl();
  const OneThread one(impl.setup.calling, "wait_updates");
  stream.wait(impl.done);
}

float Optimizer::grad_norm() {
  const Impl& impl = this->impl();
  impl.known.synchronize();
  return static_cast<float>(impl.outcome[0]);
}

StepResult Optimizer::last_step() const {
  const Impl& impl = this->impl();
  impl.known.synchronize();
  return std::isnan(impl.outcome[1]) ? StepResult::skipped : StepResult::updated;
}

std::int64_t Optimizer::steps() const {
  const Impl& impl = this->impl();
  impl.known.synchronize();
  return static_cast<std::int64_t>(impl.outcome[2]);
}

void Optimizer::set_steps(std::int64_t steps) {
  Impl& impl = this->impl();
  const OneThread one(impl.setup.calling, "set_steps");
  agree(impl.setup.ranks, "set_steps", [&]() -> std::vector<Declaration> {
    require(steps >= 0, "set_steps: the number of steps {} is negative", steps);
    return {{"the number of steps", fmt::format("{}", steps)}};
  });
  impl.set_steps(steps);
}

void EngineAccess::set_steps(Optimizer& optimizer, std::int64_t steps) {
  optimizer.impl().set_steps(steps);
}

bool EngineAccess::is_optimizer_of(const Engine& engine, const Optimizer& optimizer) noexcept {
  return optimizer.impl_ && &optimizer.impl_->engine == &engine;
}

Moments EngineAccess::moments(const Optimizer& optimizer, const Unit& unit, std::size_t bucket) {
  const Optimizer::Impl& impl = optimizer.impl();
  if (impl.first_moments.empty()) return {};
  const std::size_t index = state_of(unit).index;
  return {impl.first_moments[index][bucket], impl.second_moments[index][bucket]};
}

const OptimizerOptions& Optimizer::options() const { return impl().options; }

}  // namespace atoll_v1::atoll::fsdp

// A step has three parts. First, when the gradient of a unit is final, its squares are summed in
// blocks, on the lane (communication stream) that reduced the gradient. Second, step() gathers the
// sums of the blocks of all shards and computes the norm and the clip factor. Third, step() updates
// unit by unit. After update_in_backward() each unit is updated as soon as its squares are summed,
// on the stream `updates`.
#include "atoll/optimizer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "core/errors.hpp"
#include "core/hash.hpp"
#include "device/ops.hpp"
#include "fsdp/declarations.hpp"
#include "fsdp/gathering.hpp"
#include "fsdp/pass_state.hpp"
#include "fsdp/reducing.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

std::uint64_t owned_elements(const UnitState& unit) {
  std::uint64_t sum = 0;
  for (const UnitBucket& bucket : unit.buckets) sum += bucket.gradient.count;
  return sum;
}

void check(Engine& engine, const OptimizerOptions& options) {
  EngineAccess::setup(engine).check_frozen("Optimizer");
  require(!EngineAccess::reducing(engine).has_on_final(),
          "Optimizer: the engine has another optimizer already");
  const auto in_range = [](bool is_fine, std::string_view option, float value,
                           std::string_view range) {
    require(is_fine, "Optimizer: {} = {} is not {}", option, value, range);
  };
  const float beta1 = options.beta1, beta2 = options.beta2;
  in_range(beta1 >= 0 && beta1 < 1, "beta1", beta1, "in [0, 1)");
  in_range(beta2 >= 0 && beta2 < 1, "beta2", beta2, "in [0, 1)");
  in_range(options.epsilon > 0, "epsilon", options.epsilon, "above 0");
  in_range(options.weight_decay >= 0, "weight_decay", options.weight_decay, "0 or above");
  in_range(options.max_norm >= 0, "max_norm", options.max_norm, "0 (no clipping) or above");
  require(options.moment_dtype == DType::f32 || options.moment_dtype == DType::bf16,
          "Optimizer: moments cannot be {}: use f32 or bf16", name(options.moment_dtype));
}

}  // namespace

struct Optimizer::Impl {
  Impl(Engine& engine_, OptimizerOptions options_);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void allocate_moments();
  void allocate_norm();
  std::array<const Buffer*, 4> norm_buffers() const;
  std::uint64_t norm_bytes() const;
  void gradient_complete(const UnitState& unit, Stream& stream);
  void sum_squares(const UnitState& unit, Stream& stream);
  // These functions sum the squares and update the parameters of units for which backward has not
  // done so.
  void finish_squares(Stream& compute);
  void finish_updates(float learning_rate, Stream& compute);
  // Writes norm and clip factor to `result`. If backward has updated units, writes only the norm,
  // to `reported`.
  void measure(Stream& compute);
  View gather_blocks(Stream& compute);
  std::uint64_t rounding_key(const UnitState& unit, const UnitBucket& bucket) const;
  void update(const UnitState& unit, float learning_rate, Stream& stream);

  Engine& engine;
  OptimizerOptions options;
  Buffer moment1, moment2;
  std::vector<std::vector<Moments>> moments;  // moments of each bucket, by unit and bucket

  Buffer local_blocks;                     // this rank's sums of squares per block, by unit
  Buffer gathered_blocks;                  // sums of squares per block, of all shards
  std::vector<std::uint64_t> first_block;  // first block of each unit in local_blocks
  Buffer result;                           // f64: norm, clip factor, number of steps
  Buffer reported;                         // f64: norm after updates in backward
  // Host copy of norm, clip factor and number of steps, valid once `known` has happened. The copy
  // is in staging memory, because a GPU's copy to ordinary host memory would block the caller.
  Buffer outcome_memory = engine.device().allocate_staging(3 * sizeof(double));
  std::span<double, 3> outcome{static_cast<double*>(outcome_memory.data()), 3};
  Event known;
  Event done;  // happens when the last step is complete

  // True for each unit with sums of squares of this step in local_blocks.
  std::vector<bool> squared;
  std::vector<bool> updated;  // true for each unit that this step has updated
  // Learning rate given to update_in_backward(); empty when it was not called.
  std::optional<float> in_backward;
  Stream updates;
};

Optimizer::Impl::Impl(Engine& engine_, OptimizerOptions options_)
    : engine(engine_), options(options_), updates(engine.device().stream({.name = "update"})) {
  agree(EngineAccess::setup(engine).ranks, "Optimizer", [&] {
    check(engine, options);
    return declarations_of(options);
  });
  std::ranges::fill(outcome, 0.0);
  allocate_moments();
  allocate_norm();
  squared.assign(engine.units().size(), false);
  updated.assign(engine.units().size(), false);
  EngineAccess::reducing(engine).set_on_final(
      [this](const UnitState& unit, Stream& stream) { gradient_complete(unit, stream); });
}

Optimizer::Impl::~Impl() {
  EngineAccess::reducing(engine).set_on_final(nullptr);
  // Waits for the last step, which uses the moments and writes to `outcome`, and for sums of
  // squares that an abandoned step may still be computing.
  settle(engine.scheduler());
  settle(done);
  engine.memory().optimizer = 0;
  engine.memory().staging -= norm_bytes();
}

void Optimizer::Impl::allocate_moments() {
  std::uint64_t owned = 0;
  for (const auto& unit : engine.units()) owned += owned_elements(state_of(*unit));
  moments.resize(engine.units().size());
  if (options.kind == OptimizerOptions::Kind::adamw) {
    moment1 = engine.device().allocate(owned * size_of(options.moment_dtype));
    moment2 = engine.device().allocate(owned * size_of(options.moment_dtype));
    engine.memory().optimizer = moment1.bytes() + moment2.bytes();
  }
  std::uint64_t offset = 0;
  for (const auto& unit : engine.units()) {
    const UnitState& state = state_of(*unit);
    moments[state.index].resize(state.buckets.size());
    if (owned == 0 || moment1.bytes() == 0) continue;
    for (std::size_t b = 0; b < state.buckets.size(); ++b) {
      const std::uint64_t n = state.buckets[b].gradient.count;
      moments[state.index][b] = {moment1.view(options.moment_dtype).part(offset, n),
                                 moment2.view(options.moment_dtype).part(offset, n)};
      offset += n;
    }
  }
  EngineAccess::setup(engine).set_zero(moment1);
  EngineAccess::setup(engine).set_zero(moment2);
}

void Optimizer::Impl::allocate_norm() {
  const Device& device = engine.device();
  std::uint64_t blocks = 0;
  for (const auto& unit : engine.units()) {
    first_block.push_back(blocks);
    blocks += owned_elements(state_of(*unit)) / norm_block;
  }
  const auto shards = static_cast<std::uint64_t>(engine.scheduler().shard_count());
  local_blocks = device.allocate(blocks * sizeof(double));
  result = device.allocate(outcome.size() * sizeof(double));
  reported = device.allocate(outcome.size() * sizeof(double));
  if (shards > 1) gathered_blocks = device.allocate(blocks * shards * sizeof(double));
  for (const Buffer* buffer : norm_buffers()) EngineAccess::setup(engine).set_zero(*buffer);
  engine.memory().staging += norm_bytes();
}

std::array<const Buffer*, 4> Optimizer::Impl::norm_buffers() const {
  return {&local_blocks, &result, &reported, &gathered_blocks};
}

std::uint64_t Optimizer::Impl::norm_bytes() const {
  std::uint64_t sum = 0;
  for (const Buffer* buffer : norm_buffers()) sum += buffer->bytes();
  return sum;
}

void Optimizer::Impl::gradient_complete(const UnitState& unit, Stream& stream) {
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

void Optimizer::Impl::sum_squares(const UnitState& unit, Stream& stream) {
  std::uint64_t offset = first_block[unit.index];
  for (const UnitBucket& bucket : unit.buckets) {
    const std::uint64_t n = bucket.gradient.count / norm_block;
    if (n == 0) continue;
    engine.device().ops().sum_squares(stream, local_blocks.view(DType::f64).part(offset, n),
                                      bucket.gradient);
    offset += n;
  }
  squared[unit.index] = true;
}

// Gathers the sums of squares of all shards' blocks.
View Optimizer::Impl::gather_blocks(Stream& compute) {
  const View local = local_blocks.view(DType::f64);
  if (engine.scheduler().shard_count() == 1 || local.count == 0) return local;
  const View gathered = gathered_blocks.view(DType::f64);
  Scheduler& scheduler = engine.scheduler();
  const Work work = scheduler.all_gather(local, gathered, compute.record(), "norm");
  scheduler.wait(compute, scheduler.record(Lane::gather), "norm");
  return gathered;
}

void Optimizer::Impl::measure(Stream& compute) {
  DeviceOps& ops = engine.device().ops();
  const View blocks = gather_blocks(compute);
  const Stamp begin = engine.scheduler().begin_work(compute);
  if (in_backward) {
    ops.clip_factor(compute, reported.view(DType::f64), blocks, {});
    compute.copy(&outcome[0], reported.data(), sizeof(double));
    compute.wait(updates.record());
    compute.copy(&outcome[1], result.view(DType::f64).part(1, 2).data, 2 * sizeof(double));
  } else {
    ops.clip_factor(compute, result.view(DType::f64), blocks,
                    {options.max_norm, options.skip_nonfinite});
    compute.copy(outcome.data(), result.data(), result.bytes());
  }
  engine.scheduler().end_work(compute, begin, "norm");
  known = compute.record();
}

// Returns the seed of stochastic rounding for a bucket; 0 means rounding to nearest.
std::uint64_t Optimizer::Impl::rounding_key(const UnitState& unit, const UnitBucket& bucket) const {
  if (options.moment_dtype == DType::f32 || !options.stochastic_rounding) return 0;
  return fnv1a(fmt::format("{}/{}/{}", options.seed, unit.name, bucket.label())) | 1;
}

void Optimizer::Impl::update(const UnitState& unit, float learning_rate, Stream& stream) {
  DeviceOps& ops = engine.device().ops();
  const double* factor = result.view(DType::f64).part(1, 1).as<double>();
  const Stamp begin = engine.scheduler().begin_work(stream);
  const double* steps = result.view(DType::f64).part(2, 1).as<double>();
  for (std::size_t b = 0; b < unit.buckets.size(); ++b) {
    const UnitBucket& bucket = unit.buckets[b];
    if (!bucket.trainable) continue;
    if (options.kind == OptimizerOptions::Kind::sgd) {
      ops.sgd(stream, {bucket.master, bucket.gradient, bucket.compute_copy, learning_rate,
                       options.weight_decay, factor});
    } else {
      const auto [first, second] = moments[unit.index][b];
      ops.adamw(stream, {bucket.master, bucket.gradient, first, second, bucket.compute_copy,
                         learning_rate, options.beta1, options.beta2, options.epsilon,
                         options.weight_decay, steps, factor, rounding_key(unit, bucket),
                         bucket.master.count *
                             static_cast<std::uint64_t>(engine.scheduler().shard_index())});
    }
  }
  engine.scheduler().end_work(stream, begin, "update", unit.name);
  EngineAccess::gathering(engine).masters_updated(unit.index, stream.record(), Stale::trainable);
}

void Optimizer::Impl::finish_squares(Stream& compute) {
  for (const auto& unit : engine.units()) {
    if (!squared[state_of(*unit).index]) sum_squares(state_of(*unit), compute);
  }
  squared.assign(squared.size(), false);
}

// Updates units in the order of use, so that the next pass can begin before all units are updated.
void Optimizer::Impl::finish_updates(float learning_rate, Stream& compute) {
  for (const std::size_t index : EngineAccess::setup(engine).plan.sequence) {
    const UnitState& unit = state_of(*engine.units()[index]);
    if (updated[index] || unit.size.gradient == 0) continue;
    updated[index] = true;
    update(unit, learning_rate, compute);
  }
  updated.assign(updated.size(), false);
  in_backward.reset();
}

Optimizer::Optimizer(Engine& engine, OptimizerOptions options)
    : impl_(std::make_unique<Impl>(engine, options)) {}
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer::~Optimizer() = default;

bool Optimizer::update_in_backward(float learning_rate) {
  Impl& impl = *impl_;
  if (impl.options.max_norm > 0 || impl.options.skip_nonfinite) return false;
  if (!impl.in_backward) {
    // Sets the clip factor to 1 and increments the number of steps.
    impl.updates.wait(impl.done);
    impl.engine.device().ops().clip_factor(impl.updates, impl.result.view(DType::f64),
                                           {impl.result.data(), 0, DType::f64}, {});
  } else if (std::ranges::count(impl.updated, true) > 0) {
    throw invalid(
        "update_in_backward: units have been updated since the last step(): the abandoned step "
        "cannot begin again");
  }
  impl.in_backward = learning_rate;
  return true;
}

void Optimizer::step(float learning_rate, Stream& compute) {
  require(!impl_->in_backward || *impl_->in_backward == learning_rate,
          "Optimizer::step: the learning rate differs from the rate passed to "
          "update_in_backward()");
  // wait_gradients() comes first, so that a failed reduction stops the stream before parameters
  // change, and the error of the reduction is thrown instead of the error about micro batches.
  impl_->engine.wait_gradients(compute);
  EngineAccess::pass(impl_->engine).use_gradients();
  try {
    impl_->finish_squares(compute);
    impl_->measure(compute);
    impl_->finish_updates(learning_rate, compute);
  } catch (...) {
    impl_->done = compute.record();  // a failed step may still be using the optimizer's memory
    throw;
  }
  impl_->done = compute.record();
}

float Optimizer::grad_norm() {
  impl_->known.synchronize();
  return static_cast<float>(impl_->outcome[0]);
}

std::int64_t Optimizer::steps() const {
  impl_->known.synchronize();
  return static_cast<std::int64_t>(impl_->outcome[2]);
}

void Optimizer::set_steps(std::int64_t steps) {
  impl_->done.synchronize();
  impl_->outcome[2] = static_cast<double>(steps);
  Stream& stream = impl_->engine.scheduler().stream(Lane::gather);
  stream.copy(impl_->result.data(), impl_->outcome.data(), impl_->result.bytes());
  stream.synchronize();
}

Moments EngineAccess::moments(const Optimizer& optimizer, const Unit& unit, std::size_t bucket) {
  return optimizer.impl_->moments[state_of(unit).index][bucket];
}

const OptimizerOptions& Optimizer::options() const noexcept { return impl_->options; }

}  // namespace atoll_v1::atoll::fsdp

#include "atoll/optimizer.hpp"

#include <array>
#include <vector>

#include "device/ops.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {

struct Optimizer::Impl {
  Impl(Engine& engine_, OptimizerOptions options_);

  void allocate_moments();
  void allocate_norm();
  void set_zero(const Buffer& buffer);
  // Leaves norm and clip factor in `result`.
  void measure(Stream& compute);
  void update(const Unit::State& unit, float learning_rate, Stream& compute);

  Engine& engine;
  OptimizerOptions options;
  Buffer moment1, moment2;
  std::vector<Moments> moments;  // by unit

  // Norm blocks of this rank, all units in turn; the same of every shard, by rank; and in global
  // order: by unit, then by rank.
  Buffer local_blocks, gathered_blocks, ordered_blocks;
  Buffer result;                       // f64: norm, factor, steps
  std::array<double, 3> outcome = {};  // the same, on the host once `known` has happened
  Event known;
  Event done;  // the last step, updates and all
};

Optimizer::Impl::Impl(Engine& engine_, OptimizerOptions options_)
    : engine(engine_), options(options_) {
  if (!engine.impl().frozen) {
    throw Error(ErrorCode::invalid_argument, "Optimizer: call Engine::freeze() first");
  }
  if (!(options.epsilon > 0)) {
    throw Error(ErrorCode::invalid_argument, "Optimizer: epsilon must be greater than 0");
  }
  allocate_moments();
  allocate_norm();
}

void Optimizer::Impl::allocate_moments() {
  moments.resize(engine.units().size());
  if (options.kind == OptimizerOptions::Kind::sgd) return;
  const std::uint64_t bytes = engine.memory().parameters;
  moment1 = engine.device().allocate(bytes);
  moment2 = engine.device().allocate(bytes);
  engine.memory().optimizer = 2 * bytes;
  std::uint64_t offset = 0;
  for (const auto& unit : engine.units()) {
    const std::uint64_t n = unit->state().layout.shard_elements();
    moments[unit->state().index] = {moment1.view(DType::f32).part(offset, n),
                                    moment2.view(DType::f32).part(offset, n)};
    offset += n;
  }
  set_zero(moment1);
  set_zero(moment2);
}

void Optimizer::Impl::set_zero(const Buffer& buffer) {
  Stream& stream = engine.scheduler().stream(Lane::gather);
  stream.zero(buffer.data(), buffer.bytes());
  stream.synchronize();
}

void Optimizer::Impl::allocate_norm() {
  const Device& device = engine.device();
  const std::uint64_t blocks = engine.memory().parameters / sizeof(float) / norm_block;
  const auto shards = static_cast<std::uint64_t>(engine.scheduler().shard_count());
  local_blocks = device.allocate(blocks * sizeof(double));
  result = device.allocate(outcome.size() * sizeof(double));
  set_zero(result);
  if (shards > 1) {
    gathered_blocks = device.allocate(blocks * shards * sizeof(double));
    ordered_blocks = device.allocate(blocks * shards * sizeof(double));
  }
  engine.memory().staging +=
      local_blocks.bytes() + gathered_blocks.bytes() + ordered_blocks.bytes() + result.bytes();
}

void Optimizer::Impl::measure(Stream& compute) {
  DeviceOps& ops = engine.device().ops();
  const View local = local_blocks.view(DType::f64);
  std::uint64_t offset = 0;
  for (const auto& unit : engine.units()) {
    const View gradient = unit->state().gradient;
    const std::uint64_t n = gradient.count / norm_block;
    ops.sum_squares(compute, local.part(offset, n), gradient);
    offset += n;
  }
  View ordered = local;
  const auto shards = static_cast<std::uint64_t>(engine.scheduler().shard_count());
  if (shards > 1) {
    const View gathered = gathered_blocks.view(DType::f64);
    ordered = ordered_blocks.view(DType::f64);
    engine.scheduler().all_gather(local, gathered, compute.record()).wait(compute);
    std::uint64_t to = 0, unit_begin = 0;
    for (const auto& unit : engine.units()) {
      const std::uint64_t n = unit->state().gradient.count / norm_block;
      for (std::uint64_t rank = 0; rank < shards; ++rank, to += n) {
        compute.copy(ordered.part(to, n).data,
                     gathered.part(rank * local.count + unit_begin, n).data, n * sizeof(double));
      }
      unit_begin += n;
    }
  }
  ops.clip_factor(compute, result.view(DType::f64), ordered, options.max_norm);
  compute.copy(outcome.data(), result.data(), result.bytes());
  known = compute.record();
}

void Optimizer::Impl::update(const Unit::State& unit, float learning_rate, Stream& compute) {
  DeviceOps& ops = engine.device().ops();
  const double* factor = result.view(DType::f64).part(1, 1).as<double>();
  const double* steps = result.view(DType::f64).part(2, 1).as<double>();
  if (options.kind == OptimizerOptions::Kind::sgd) {
    ops.sgd(compute,
            {unit.master, unit.gradient, unit.low, learning_rate, options.weight_decay, factor});
    return;
  }
  const auto [first, second] = moments[unit.index];
  ops.adamw(compute,
            {unit.master, unit.gradient, first, second, unit.low, learning_rate, options.beta1,
             options.beta2, options.epsilon, options.weight_decay, steps, factor});
}

Optimizer::Optimizer(Engine& engine, OptimizerOptions options)
    : impl_(std::make_unique<Impl>(engine, options)) {}
Optimizer::Optimizer(Optimizer&&) noexcept = default;

Optimizer::~Optimizer() {
  if (!impl_) return;
  try {
    impl_->done.synchronize();  // the last step uses the moments and writes into this object
  } catch (...) {
    // Whoever waited for the step has been told.
  }
}

void Optimizer::step(float learning_rate, Stream& compute) {
  // Every gradient first: a failed reduction stops the stream before anything is changed.
  impl_->engine.wait_gradients(compute);
  try {
    impl_->measure(compute);
  } catch (...) {
    impl_->done = compute.record();  // what was enqueued until now still uses this object
    throw;
  }
  for (const auto& unit : impl_->engine.units()) {
    impl_->update(unit->state(), learning_rate, compute);
  }
  impl_->engine.parameters_changed(compute);
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

const OptimizerOptions& Optimizer::options() const noexcept { return impl_->options; }
Optimizer::Moments Optimizer::moments(const Unit& unit) const {
  return impl_->moments[unit.state().index];
}

}  // namespace atoll_v1::atoll::fsdp

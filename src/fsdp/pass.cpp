// The life of a pass: gathers run ahead of compute, reductions behind it.
//
// Event edges. A gather into a slot waits until compute has left the slot's previous residence, and
// compute waits for the gather. A whole gradient is written after the reduction that last read its
// slot; its reduction waits until compute has written it. The reduction across replicas waits for
// the one inside the shard axis. Nothing else is ordered, so each lane runs as early as it can.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/assert.hpp"
#include "core/log.hpp"
#include "device/ops.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {

std::size_t Engine::Impl::pass_length() const noexcept {
  return pass.kind == PassOptions::Kind::train ? plan.sequence.size() : plan.forward_length;
}

View Engine::Impl::gathered(const Unit::State& unit, std::size_t at) const {
  if (!sharded()) return low_precision() ? unit.low : unit.master;
  const Residence& residence = plan.residences[plan.residence_of[at]];
  return gathered_slots[residence.slot]
      .memory.view(options.precision.param)
      .part(0, unit.layout.elements);
}

View Engine::Impl::whole_gradient(const Unit::State& unit) const {
  if (!sharded()) return unit.gradient;
  return gradient_slots[plan.gradients[unit.index].slot]
      .memory.view(DType::f32)
      .part(0, unit.layout.elements);
}

void Engine::Impl::begin(const PassOptions& pass_options, Stream& compute_stream) {
  world.check();
  if (!frozen) throw Error(ErrorCode::invalid_argument, "Engine::begin: call freeze() first");
  if (active) throw Error(ErrorCode::invalid_argument, "Engine::begin: a pass is under way");
  if (pass_options.of < 1 || pass_options.micro < 0 || pass_options.micro >= pass_options.of) {
    throw Error(ErrorCode::invalid_argument, fmt::format("Engine::begin: micro batch {} of {}",
                                                         pass_options.micro, pass_options.of));
  }
  pass = pass_options;
  compute = &compute_stream;
  position = 0;
  next_gather = wanted_gather = 0;
  left.assign(plan.residences.size(), false);
  open_scopes.assign(plan.residences.size(), 0);
  open_gradients.assign(units.size(), 0);
  for (auto& slot : gradient_slots) slot.owner.reset();
  gathers.assign(plan.residences.size(), Work());
  (sharded() ? scheduler.stream(Lane::gather) : compute_stream).wait(parameters_ready);
  if (sharded() && options.prefetch > 0) {
    gather_ahead(static_cast<std::size_t>(options.prefetch) - 1);
  }
  active = true;
}

// Starts every gather up to and including `residence` whose slot compute has left; leave() starts
// those that had to wait, as happens when several units are open at once.
void Engine::Impl::gather_ahead(std::size_t residence) {
  wanted_gather = std::max(wanted_gather, residence);
  const std::size_t slots = gathered_slots.size();
  while (next_gather <= wanted_gather && next_gather < plan.residences.size() &&
         plan.residences[next_gather].first < pass_length() &&
         (next_gather < slots || left[next_gather - slots])) {
    gather(next_gather++);
  }
}

void Engine::Impl::gather(std::size_t index) {
  const Residence& residence = plan.residences[index];
  const Unit::State& unit = units[residence.unit]->state();
  GatheredSlot& slot = gathered_slots[residence.slot];
  const View whole = gathered(unit, residence.first);
  ConstView mine = unit.master;
  if (low_precision()) {
    const std::uint64_t n = unit.layout.shard_elements();
    const View part = whole.part(n * static_cast<std::uint64_t>(scheduler.shard_index()), n);
    scheduler.run(Lane::gather, slot.free,
                  [&](Stream& stream) { options.device.ops().cast(stream, part, unit.master); });
    mine = part;
  }
  gathers[index] = scheduler.all_gather(mine, whole, slot.free);
  traffic.shard_bytes += whole.bytes();
}

std::size_t Engine::Impl::enter(Unit& unit, std::size_t lowest, std::size_t highest,
                                std::string_view what) {
  ATOLL_ASSERT(active, "a scope needs a pass");
  if (position < lowest || position >= highest) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}({}): out of order: {} of the {} uses of this pass are over", what,
                            unit.name(), position, pass_length()));
  }
  const Unit& expected = *units[plan.sequence[position]];
  if (&expected != &unit) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}({}): the declared order has {} here (use {} of {})", what,
                            unit.name(), expected.name(), position + 1, pass_length()));
  }
  if (sharded()) {
    const std::size_t residence = plan.residence_of[position];
    gather_ahead(residence + static_cast<std::size_t>(options.prefetch));
    if (next_gather <= residence) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}({}): {} units are open, which takes a prefetch of {} or more",
                              what, unit.name(), gathered_slots.size() + 1, gathered_slots.size()));
    }
    if (position == plan.residences[residence].first) gathers[residence].wait(*compute);
    ++open_scopes[residence];
  }
  return position++;
}

// Scopes of one unit may be nested: the residence ends with the last of them.
void Engine::Impl::leave(std::size_t at) {
  if (!sharded()) return;
  const std::size_t index = plan.residence_of[at];
  const Residence& residence = plan.residences[index];
  const bool last_entered = position > std::min(residence.last, pass_length() - 1);
  if (--open_scopes[index] > 0 || !last_entered) return;
  gathered_slots[residence.slot].free = compute->record();
  left[index] = true;
  gather_ahead(wanted_gather);
}

// Before the position is taken: a third unit open at once would share a gradient buffer.
void Engine::Impl::check_gradient(const Unit::State& unit) const {
  if (!sharded() || position != plan.gradients[unit.index].first) return;
  const auto& owner = gradient_slots[plan.gradients[unit.index].slot].owner;
  if (owner) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("backward({}): {} units are open already, {} among them", unit.name,
                            gradient_slots.size(), units[*owner]->name()));
  }
}

void Engine::Impl::open_gradient(Unit::State& unit, std::size_t at) {
  ++open_gradients[unit.index];
  const GradientUse& use = plan.gradients[unit.index];
  if (at != use.first) return;
  if (!sharded()) {
    // A step that was skipped leaves the last reduction across replicas to wait for.
    if (pass.micro == 0) compute->wait(unit.gradient_final, WaitReason::communication);
    return;
  }
  gradient_slots[use.slot].owner = unit.index;
  compute->wait(gradient_slots[use.slot].free, WaitReason::communication);
  // Slots are shared by units of other layouts, whose values lie in the gaps of this one.
  const View whole = whole_gradient(unit);
  for (const BucketSlot& gap : unit.layout.gaps()) {
    const View part = whole.part(gap.offset, gap.count);
    compute->zero(part.data, part.bytes());
  }
}

void Engine::Impl::close_gradient(Unit::State& unit) {
  const bool over = position > plan.gradients[unit.index].last;
  if (--open_gradients[unit.index] > 0 || !over) return;
  if (sharded()) gradient_slots[plan.gradients[unit.index].slot].owner.reset();
  if (!sharded() && pass.micro + 1 < pass.of) return;
  reduce(unit, compute->record());
}

void Engine::Impl::reduce(Unit::State& unit, const Event& written) {
  Event reduced = written;
  if (sharded()) {
    const View whole = whole_gradient(unit);
    const View target =
        pass.micro == 0 ? unit.gradient : staging.view(DType::f32).part(0, unit.gradient.count);
    if (pass.micro == 0) scheduler.stream(Lane::reduce).wait(unit.gradient_final);
    scheduler.reduce_scatter(whole, target, written);
    gradient_slots[plan.gradients[unit.index].slot].free = scheduler.stream(Lane::reduce).record();
    traffic.shard_bytes += whole.bytes();
    if (pass.micro > 0)
      options.device.ops().add(scheduler.stream(Lane::reduce), unit.gradient, target);
    reduced = scheduler.stream(Lane::reduce).record();
  }
  if (pass.micro + 1 == pass.of && scheduler.replicate_count() > 1) {
    scheduler.all_reduce(unit.gradient, reduced);
    reduced = scheduler.stream(Lane::outer).record();
    traffic.replicate_bytes += unit.gradient.bytes();
  }
  unit.gradient_final = reduced;
}

void Engine::Impl::end() noexcept {
  active = false;
  try {
    passed = compute->record();
    if (position == pass_length() || !sharded()) return;
    log::warn("a pass ended after {} of {} uses", position, pass_length());
    for (auto& slot : gathered_slots) slot.free = compute->record();
  } catch (const std::exception&) {
    // The job has failed; there is nothing left to order.
  }
}

Pass::Pass(Engine& engine) : engine_(&engine) {}
Pass::Pass(Pass&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
Pass::~Pass() {
  if (engine_) engine_->impl().end();
}

ForwardScope Pass::forward(Unit& unit) {
  Engine::Impl& impl = engine_->impl();
  return {*engine_, unit, impl.enter(unit, 0, impl.plan.forward_length, "forward")};
}

BackwardScope Pass::backward(Unit& unit) {
  Engine::Impl& impl = engine_->impl();
  if (impl.pass.kind != PassOptions::Kind::train) {
    throw Error(ErrorCode::invalid_argument, "backward: this pass is for evaluation");
  }
  impl.check_gradient(unit.state());
  const std::size_t position =
      impl.enter(unit, impl.plan.forward_length, impl.plan.sequence.size(), "backward");
  impl.open_gradient(unit.state(), position);
  return {*engine_, unit, position};
}

ForwardScope::ForwardScope(Engine& engine, Unit& unit, std::size_t position)
    : engine_(&engine), unit_(&unit), position_(position) {}

ForwardScope::ForwardScope(ForwardScope&& other) noexcept
    : engine_(std::exchange(other.engine_, nullptr)),
      unit_(other.unit_),
      position_(other.position_) {}

ForwardScope::~ForwardScope() {
  if (!engine_) return;
  Engine::Impl& impl = engine_->impl();
  try {
    if (position_ >= impl.plan.forward_length) impl.close_gradient(unit_->state());
    impl.leave(position_);
  } catch (const std::exception& error) {
    // Only a failed job gets here; whatever waits next reports it.
    log::debug("end of unit {}: {}", unit_->name(), error.what());
  }
}

View ForwardScope::operator[](std::string_view param) const {
  const Unit::State& state = unit_->state();
  const BucketSlot& slot = state.layout.slots[state.find(param)];
  return engine_->impl().gathered(state, position_).part(slot.offset, slot.count);
}

Gradient BackwardScope::grad(std::string_view param) const {
  const Engine::Impl& impl = engine_->impl();
  const Unit::State& state = unit_->state();
  const BucketSlot& slot = state.layout.slots[state.find(param)];
  const bool first = position_ == impl.plan.gradients[state.index].first &&
                     (impl.sharded() || impl.pass.micro == 0);
  return {impl.whole_gradient(state).part(slot.offset, slot.count),
          first ? WriteMode::overwrite : WriteMode::accumulate};
}

Pass Engine::begin(const PassOptions& options, Stream& compute) {
  impl_->begin(options, compute);
  return Pass(*this);
}

void Engine::wait_gradients(Stream& compute) {
  impl_->world.check();
  for (const auto& unit : impl_->units) {
    compute.wait(unit->state().gradient_final, WaitReason::communication);
  }
}

void Engine::parameters_changed(Stream& compute) { impl_->parameters_ready = compute.record(); }

}  // namespace atoll_v1::atoll::fsdp

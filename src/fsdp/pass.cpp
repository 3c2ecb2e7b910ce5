// The life of a pass: what a scope of forward or backward waits for and what it starts.
#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/assert.hpp"
#include "core/log.hpp"
#include "device/backend.hpp"
#include "device/ops.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {

std::size_t Engine::Impl::pass_length() const noexcept {
  return pass.kind == PassOptions::Kind::train ? plan.sequence.size() : plan.forward_length;
}

// A micro batch that came twice would be added twice, one that is left out would be missing.
void Engine::Impl::check_micro(const PassOptions& next) const {
  if (next.kind != PassOptions::Kind::train || next.micro == 0) return;
  if (next.micro == next_micro && next.of == step_micros) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("Engine::begin: micro batch {} of {}, where {}", next.micro, next.of,
                          next_micro == 0 ? std::string("a step begins with 0")
                                          : fmt::format("the step goes on with {} of {}, or begins "
                                                        "again with 0",
                                                        next_micro, step_micros)));
}

void Engine::Impl::begin(const PassOptions& pass_options, Stream& compute_stream) {
  world.check();
  if (!frozen) throw Error(ErrorCode::invalid_argument, "Engine::begin: call freeze() first");
  if (active) throw Error(ErrorCode::invalid_argument, "Engine::begin: a pass is under way");
  if (pass_options.of < 1 || pass_options.micro < 0 || pass_options.micro >= pass_options.of) {
    throw Error(ErrorCode::invalid_argument, fmt::format("Engine::begin: micro batch {} of {}",
                                                         pass_options.micro, pass_options.of));
  }
  check_micro(pass_options);
  pass = pass_options;
  if (pass.kind == PassOptions::Kind::train) {
    next_micro = 0;  // until the pass is complete
    gradients_whole = false;
    step_micros = pass.of;
  }
  compute = &compute_stream;
  compute->wait(passed);  // which may have been on another stream
  position = 0;
  next_gather = wanted_gather = 0;
  left.assign(plan.residences.size(), false);
  open_scopes.assign(plan.residences.size(), 0);
  open_gradients.assign(units.size(), 0);
  for (auto& slot : gradient_slots) slot.owner.reset();
  for (const auto& unit : units) unit->state().is_kept = false;
  gathers.assign(plan.residences.size(), LaneEvent());
  entered.assign(plan.sequence.size(), Stamp());
  ranges.assign(plan.sequence.size(), 0);
  if (sharding.resident) {
    gather_resident();
  } else if (options.prefetch > 0) {
    gather_ahead(static_cast<std::size_t>(options.prefetch) - 1);
  }
  given_up = false;
  active = true;
}

void Engine::Impl::check_going_on(const Unit& unit, std::string_view what) const {
  if (!given_up) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}({}): an exception has left a scope of this pass, which gave it up",
                          what, unit.name()));
}

// Why the unit of this residence could not be gathered.
Error Engine::Impl::no_slot(const Unit& unit, std::size_t residence, std::string_view what) const {
  const std::size_t mirror = plan.mirror_of(residence);
  if (mirror < residence && !left[mirror]) {
    return {ErrorCode::invalid_argument,
            fmt::format("{}({}): its scope of forward is still open", what, unit.name())};
  }
  const std::size_t slots = gathered_slots.size();
  return {ErrorCode::invalid_argument,
          fmt::format("{}({}): {} units are open, which takes a prefetch of {} or more", what,
                      unit.name(), slots + 1, slots)};
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
  const std::size_t residence = plan.residence_of[position];
  const bool first = position == plan.residences[residence].first;
  if (sharding.resident) {
    const Unit::State& state = unit.state();
    if (first && sharded()) scheduler.wait(*compute, state.gathered, unit.name());
    if (first && !sharded()) compute->wait(state.updated);
  } else {
    gather_ahead(residence + static_cast<std::size_t>(options.prefetch));
    if (next_gather <= residence) throw no_slot(unit, residence, what);
    if (first) scheduler.wait(*compute, gathers[residence], unit.name());
  }
  ++open_scopes[residence];
  return position++;
}

// Whether the unit is used again before another one takes its slot: after the turn, or in the next
// micro batch, which begins where this one ends.
bool Engine::Impl::finds_again(std::size_t index) const {
  if (pass.kind != PassOptions::Kind::train) return false;
  const bool at_end = plan.mirror_of(index) < gathered_slots.size();
  return plan.residences[index].stays || (at_end && pass.micro + 1 < pass.of);
}

// Scopes of one unit may be nested: the residence ends with the last of them.
void Engine::Impl::leave(std::size_t at) {
  const std::size_t index = plan.residence_of[at];
  const Residence& residence = plan.residences[index];
  const bool last_entered = position > std::min(residence.last, pass_length() - 1);
  if (--open_scopes[index] > 0 || !last_entered) return;
  left[index] = true;
  // The last use is over, whoever still holds the pass.
  if (pass.kind == PassOptions::Kind::train) {
    gradients_whole = pass.micro + 1 == pass.of && position == pass_length() &&
                      std::ranges::count(left, false) == 0;
  }
  if (sharding.resident) {
    units[residence.unit]->state().left = compute->record();
  } else {
    Unit::State& unit = units[residence.unit]->state();
    const bool again = pass.kind == PassOptions::Kind::train && at < plan.forward_length;
    const bool keeps = again && unit.kept.count > 0 && !unit.is_kept && !residence.stays;
    GatheredSlot& slot = gathered_slots[residence.slot];
    if (!keeps && !finds_again(index)) give_up(*compute, slot);
    slot.free = compute->record();
    if (keeps) keep_inner_shard(unit, residence.slot);
    gather_ahead(wanted_gather);
  }
}

// Before the position is taken: a third unit open at once would share a gradient buffer.
void Engine::Impl::check_gradient(const Unit::State& unit) const {
  if (sharding.kept_gradients || unit.size.gradient == 0) return;
  if (position != plan.gradients[unit.index].first) return;
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
  if (at != use.first || unit.size.gradient == 0) return;
  if (sharding.kept_gradients) {
    // A step that was skipped leaves its last reduction to wait for.
    if (pass.micro == 0) scheduler.wait(*compute, unit.gradient_final, unit.name);
    return;
  }
  gradient_slots[use.slot].owner = unit.index;
  scheduler.wait(*compute, gradient_slots[use.slot].free, unit.name);
  hold_gradient(*compute, gradient_slots[use.slot], unit);
  // Slots are shared by units of other layouts, whose values lie in the gaps of this one.
  for (const UnitBucket& bucket : unit.buckets) {
    if (!bucket.trainable) continue;
    for (const BucketSlot& gap : bucket.layout.gaps()) {
      const View part = whole_gradient(unit, bucket).part(gap.offset, gap.count);
      compute->zero(part.data, part.bytes());
    }
  }
}

void Engine::Impl::close_gradient(Unit::State& unit) {
  const bool over = position > plan.gradients[unit.index].last;
  if (--open_gradients[unit.index] > 0 || !over || unit.size.gradient == 0) return;
  if (!sharding.kept_gradients) gradient_slots[plan.gradients[unit.index].slot].owner.reset();
  if (sharding.kept_gradients && pass.micro + 1 < pass.of) return;
  reduce(unit, compute->record());
}

void Engine::Impl::end() noexcept {
  active = false;
  try {
    passed = compute->record();  // first: compute may still read the buffers of a job that failed
    world.check();
    if (position == pass_length() && !given_up) {
      if (pass.kind == PassOptions::Kind::train) next_micro = (pass.micro + 1) % pass.of;
      return;
    }
    log::warn("a pass {} after {} of {} uses", given_up ? "was given up" : "ended", position,
              pass_length());
    // Gathers that nobody came to wait for still read the masters.
    for (std::size_t index = 0; index < next_gather; ++index) compute->wait(gathers[index]);
    for (const auto& unit : units) compute->wait(unit->state().gathered);
    for (auto& slot : gathered_slots) give_up(*compute, slot);
    for (const auto& slot : gradient_slots) {
      if (slot.owner) hold_nothing(*compute, slot.memory);  // its reduction will not come
    }
    passed = compute->record();
    for (auto& slot : gathered_slots) slot.free = passed;
    for (const auto& unit : units) unit->state().left = passed;
  } catch (const Error&) {
    // The job has failed; there is nothing left to order.
  } catch (const std::exception& error) {
    world.fail(error.what());
  }
}

Pass::Pass(Engine& engine) : engine_(&engine) {}
Pass::Pass(Pass&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
Pass::~Pass() {
  if (engine_) engine_->impl().end();
}

ForwardScope Pass::forward(Unit& unit) {
  Engine::Impl& impl = engine_->impl();
  impl.check_going_on(unit, "forward");
  const std::size_t position = impl.enter(unit, 0, impl.plan.forward_length, "forward");
  impl.entered[position] = impl.scheduler.begin_work(*impl.compute);
  impl.tell_scope(unit.state(), position);
  impl.ranges[position] = impl.compute->backend().begin_range({"forward", unit.name()});
  return {*engine_, unit, position};
}

BackwardScope Pass::backward(Unit& unit) {
  Engine::Impl& impl = engine_->impl();
  if (impl.pass.kind != PassOptions::Kind::train) {
    throw Error(ErrorCode::invalid_argument, "backward: this pass is for evaluation");
  }
  impl.check_going_on(unit, "backward");
  impl.check_gradient(unit.state());
  const std::size_t position =
      impl.enter(unit, impl.plan.forward_length, impl.plan.sequence.size(), "backward");
  impl.open_gradient(unit.state(), position);
  impl.entered[position] = impl.scheduler.begin_work(*impl.compute);
  impl.tell_scope(unit.state(), position);
  impl.ranges[position] = impl.compute->backend().begin_range({"backward", unit.name()});
  return {*engine_, unit, position};
}

ForwardScope::ForwardScope(Engine& engine, Unit& unit, std::size_t position)
    : engine_(&engine),
      unit_(&unit),
      position_(position),
      exceptions_(std::uncaught_exceptions()) {}

ForwardScope::ForwardScope(ForwardScope&& other) noexcept
    : engine_(std::exchange(other.engine_, nullptr)),
      unit_(other.unit_),
      position_(other.position_),
      exceptions_(other.exceptions_) {}

ForwardScope::~ForwardScope() {
  if (!engine_) return;
  Engine::Impl& impl = engine_->impl();
  impl.compute->backend().end_range(impl.ranges[position_]);
  if (std::uncaught_exceptions() > exceptions_) impl.given_up = true;
  if (impl.given_up) return;  // what backward has written may be a part of a gradient
  try {
    impl.tell_scope(unit_->state(), position_);
    const bool backward = position_ >= impl.plan.forward_length;
    impl.scheduler.end_work(*impl.compute, impl.entered[position_],
                            backward ? "backward" : "forward", unit_->name());
    if (backward) impl.close_gradient(unit_->state());
    impl.leave(position_);
  } catch (const Error& error) {
    // A checker's finding, which whatever comes next reports as it is; or the peers would wait for
    // what was not enqueued.
    if (error.code() == ErrorCode::internal) {
      log::debug("end of unit {}: {}", unit_->name(), error.what());
    } else {
      impl.world.fail(fmt::format("end of unit {}: {}", unit_->name(), error.what()));
    }
  } catch (const std::exception& error) {
    impl.world.fail(fmt::format("end of unit {}: {}", unit_->name(), error.what()));
  }
}

View ForwardScope::operator[](std::string_view param) const {
  const Unit::State& state = unit_->state();
  const auto& [bucket, slot] = state.places[state.find(param)];
  return engine_->impl().gathered(state.buckets[bucket], position_).part(slot.offset, slot.count);
}

Gradient BackwardScope::grad(std::string_view param) const {
  const Engine::Impl& impl = engine_->impl();
  const Unit::State& state = unit_->state();
  const auto& [index, slot] = state.places[state.find(param)];
  const UnitBucket& bucket = state.buckets[index];
  if (!bucket.trainable) return {{nullptr, 0, DType::f32}, WriteMode::none};
  const bool first = position_ == impl.plan.gradients[state.index].first &&
                     (!impl.sharding.kept_gradients || impl.pass.micro == 0);
  return {impl.whole_gradient(state, bucket).part(slot.offset, slot.count),
          first ? WriteMode::overwrite : WriteMode::accumulate};
}

Pass Engine::begin(const PassOptions& options, Stream& compute) {
  impl_->begin(options, compute);
  return Pass(*this);
}

void Engine::wait_gradients(Stream& compute) {
  impl_->world.check();
  for (const auto& unit : impl_->units) {
    const Unit::State& state = unit->state();
    impl_->scheduler.wait(compute, state.reduced, unit->name());
    compute.wait(state.gradient_final);  // sums of squares are compute, whatever lane they run on
  }
}

void Engine::parameters_changed(Stream& compute) {
  for (const auto& unit : impl_->units) {
    for (const UnitBucket& bucket : unit->state().buckets) {
      if (bucket.low.count) impl_->options.device.ops().cast(compute, bucket.low, bucket.master);
    }
  }
  const Event updated = compute.record();
  for (const auto& unit : impl_->units) impl_->update(unit->state(), updated, Stale::all);
}

}  // namespace atoll_v1::atoll::fsdp

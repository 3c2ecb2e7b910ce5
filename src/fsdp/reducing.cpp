#include "fsdp/reducing.hpp"

#include "core/errors.hpp"
#include "device/ops.hpp"
#include "fsdp/pass_observer.hpp"

namespace atoll_v1::atoll::fsdp {

void Reducing::seal() {
  slots_.resize(sharding_.accumulates_unsharded ? 0 : plan_.gradient_slots.size());
}

void Reducing::begin_pass(const PassOptions& pass) {
  pass_ = pass;
  for (UnitGradient& unit : units_) unit.scopes = 0;
  for (Slot& slot : slots_) slot.owner.reset();
}

void Reducing::check_slot(const UnitState& unit, std::size_t position) const {
  if (sharding_.accumulates_unsharded || unit.size.gradient == 0) return;
  const GradientUse& use = plan_.gradients[unit.index];
  const auto& owner = slots_[use.slot].owner;
  if (position != use.first || !owner) return;
  throw invalid(
      "backward({}): {} units with open backward scopes, among them {}, occupy all gradient "
      "buffers",
      unit.name, slots_.size(), setup_.state(*owner).name);
}

void Reducing::open(Stream& compute, const UnitState& unit, std::size_t position) {
  ++units_[unit.index].scopes;
  const GradientUse& use = plan_.gradients[unit.index];
  if (position != use.first || unit.size.gradient == 0) return;
  if (sharding_.accumulates_unsharded) {
    // If no optimizer step came since the last reduction, compute has not waited for that reduction
    // yet, so it waits here.
    if (pass_.micro == 0) scheduler_.wait(compute, units_[unit.index].final, unit.name);
    return;
  }
  slots_[use.slot].owner = unit.index;
  scheduler_.wait(compute, slots_[use.slot].free, unit.name);
  PassObserver::hold_gradient(compute, storage_.gradient_slot(use.slot), unit);
  // Zeros the gaps between tensors, in which other units that use the slot may have left values.
  for (const UnitBucket& bucket : unit.buckets) {
    if (!bucket.trainable) continue;
    for (const BucketSlot& gap : bucket.layout.gaps()) {
      const View part = storage_.unsharded_gradient(unit, bucket).part(gap.offset, gap.count);
      compute.zero(part.data, part.bytes());
    }
  }
}

std::optional<Event> Reducing::close(Stream& compute, const UnitState& unit, std::size_t next) {
  const GradientUse& use = plan_.gradients[unit.index];
  if (--units_[unit.index].scopes > 0 || next <= use.last || unit.size.gradient == 0) return {};
  if (!sharding_.accumulates_unsharded) {
    slots_[use.slot].owner.reset();
  } else if (!is_last()) {
    return {};
  }
  return compute.record();
}

WriteMode Reducing::write_mode(const UnitState& unit, std::size_t position) const noexcept {
  const bool is_empty = !sharding_.accumulates_unsharded || pass_.micro == 0;
  return is_empty && position == plan_.gradients[unit.index].first ? WriteMode::overwrite
                                                                   : WriteMode::accumulate;
}

void Reducing::cancel(Stream& compute) const {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].owner) PassObserver::hold_nothing(compute, storage_.gradient_slot(slot));
  }
}

void Reducing::wait(Stream& compute) const {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    scheduler_.wait(compute, units_[unit].reduced, setup_.state(unit).name);
    // The wait for `final` is not recorded as communication: it waits for local sums of squares.
    compute.wait(units_[unit].final);
  }
}

void Reducing::reduce(const UnitState& unit, const Event& written) {
  UnitGradient& gradient = units_[unit.index];
  LaneEvent reduced = setup_.sharded() ? reduce_shards(unit, written) : written;
  const bool replicate = is_last() && setup_.replicated();
  if (replicate) {
    for (const UnitBucket& bucket : unit.buckets) {
      if (bucket.trainable) reduce_replicas(unit, bucket.gradient, reduced);
    }
    reduced = scheduler_.record(Lane::replicate);
  }
  const Lane lane = replicate ? Lane::replicate : Lane::reduce;
  if (is_last() && averages()) reduced = average(unit, lane);
  gradient.reduced = reduced;
  if (is_last() && on_final_) {
    Stream& stream = scheduler_.stream(lane);
    stream.wait(reduced);
    on_final_(unit, stream);
    reduced = scheduler_.record(lane);
  }
  gradient.final = reduced;
}

bool Reducing::averages() const noexcept {
  return setup_.options.gradients == GradientScale::average &&
         (setup_.sharded() || setup_.replicated());
}

// Divides the sums, which the lane has computed, by the number of ranks.
LaneEvent Reducing::average(const UnitState& unit, Lane lane) {
  const double factor = 1.0 / (scheduler_.shard_count() * scheduler_.replicate_count());
  return scheduler_.run(
      lane, {},
      [&](Stream& stream) {
        for (const UnitBucket& bucket : unit.buckets) {
          if (bucket.gradient.count == 0) continue;
          setup_.ops().scale(stream, bucket.gradient, bucket.gradient, factor);
        }
      },
      "average");
}

// Sums the gradients of a unit over the shard axis into the sharded gradients. The returned event
// happens when the sums are complete.
LaneEvent Reducing::reduce_shards(const UnitState& unit, const Event& written) {
  const bool accumulates_unsharded = sharding_.accumulates_unsharded;
  Stream& stream = scheduler_.stream(Lane::reduce);
  const bool adds = !accumulates_unsharded && pass_.micro > 0;
  if (!accumulates_unsharded && pass_.micro == 0) stream.wait(units_[unit.index].final);
  for (const UnitBucket& bucket : unit.buckets) {
    if (!bucket.trainable) continue;
    const View target = adds ? storage_.staging(bucket.gradient.count) : bucket.gradient;
    reduce_shard(unit, storage_.unsharded_gradient(unit, bucket), target, written);
    if (adds) setup_.ops().add(stream, bucket.gradient, target);
  }
  if (accumulates_unsharded) return scheduler_.record(Lane::reduce);
  const std::size_t slot = plan_.gradients[unit.index].slot;
  PassObserver::hold_nothing(stream, storage_.gradient_slot(slot));
  return slots_[slot].free = scheduler_.record(Lane::reduce);
}

void Reducing::reduce_shard(const UnitState& unit, View unsharded, View target,
                            const Event& written) {
  if (!setup_.casts_gradients()) {
    const Work work = scheduler_.reduce_scatter(unsharded, target, written, unit.name);
    traffic_.shard_bytes += unsharded.bytes();
    return;
  }
  const View from = storage_.cast_unsharded(unsharded.count);
  const View to = storage_.cast_shard(target.count);
  scheduler_.run(
      Lane::reduce, written, [&](Stream& stream) { setup_.ops().cast(stream, from, unsharded); },
      "cast");
  const Work work = scheduler_.reduce_scatter(from, to, {}, unit.name);
  traffic_.shard_bytes += from.bytes();
  setup_.ops().cast(scheduler_.stream(Lane::reduce), target, to);
}

// Sums a sharded gradient over the replicate axis in place.
void Reducing::reduce_replicas(const UnitState& unit, View gradient, const Event& reduced) {
  View sent = gradient;
  if (setup_.casts_gradients()) {
    sent = storage_.cast_replicate(gradient.count);
    scheduler_.run(
        Lane::replicate, reduced,
        [&](Stream& stream) { setup_.ops().cast(stream, sent, gradient); }, "cast");
  }
  const Work work = scheduler_.all_reduce(sent, reduced, unit.name);
  traffic_.replicate_bytes += sent.bytes();
  if (setup_.casts_gradients()) {
    setup_.ops().cast(scheduler_.stream(Lane::replicate), gradient, sent);
  }
}

}  // namespace atoll_v1::atoll::fsdp

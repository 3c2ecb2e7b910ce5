// What the engine puts on the lanes: gathers ahead of compute, reductions behind it.
//
// A unit that is still whole in its slot is not gathered again.
//
// Event edges. A gather into a slot waits until compute has left the slot's previous residence, and
// for the unit's last update; compute waits for the gather. A reduction waits until compute has
// written the whole gradient; the reduction across replicas waits for the one inside the shard
// axis. Nothing else is ordered, so each lane runs as early as it can.
#include <algorithm>
#include <utility>

#include "device/ops.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {

// `whole` is the bucket's; its own part of it is where the gather starts, unless the master is.
void Engine::Impl::gather_bucket(const Unit::State& unit, const UnitBucket& bucket, View whole,
                                 const Event& after) {
  ConstView mine = bucket.low.count > 0 ? bucket.low : bucket.master;
  if (mine.dtype != bucket.dtype) {
    const std::uint64_t n = bucket.layout.shard_elements();
    const View part = whole.part(n * static_cast<std::uint64_t>(scheduler.shard_index()), n);
    scheduler.run(
        Lane::gather, after,
        [&](Stream& stream) { options.device.ops().cast(stream, part, bucket.master); }, "cast");
    mine = part;
  }
  const Work work = scheduler.all_gather(mine, whole, after, unit.name);
  traffic.shard_bytes += whole.bytes();
}

// In the order of use, so that the first is there soonest.
void Engine::Impl::gather_resident() {
  for (const std::size_t index : plan.sequence) {
    Unit::State& unit = units[index]->state();
    const Stale stale = std::exchange(unit.stale, Stale::none);
    if (stale == Stale::none || !sharded()) continue;
    Stream& stream = scheduler.stream(Lane::gather);
    stream.wait(unit.updated);
    for (const UnitBucket& bucket : unit.buckets) {
      if (!bucket.trainable && stale != Stale::all) continue;
      gather_bucket(unit, bucket, bucket.whole, unit.left);
    }
    unit.gathered = scheduler.record(Lane::gather);
  }
}

// Whether nothing has taken the slot since the unit was whole in it.
bool Engine::Impl::is_there(std::size_t index) const {
  const Residence& residence = plan.residences[index];
  const GatheredSlot& slot = gathered_slots[residence.slot];
  return slot.holds == residence.unit && !slot.stale;
}

void Engine::Impl::give_up(Stream& stream, GatheredSlot& slot) {
  if (slot.holds) hold_nothing(stream, slot.memory);
  slot.holds.reset();
}

// Whether compute has left the slot, and, where the unit's inner shard is to be kept from forward,
// forward: a unit that is gathered far ahead of backward may still be open there.
bool Engine::Impl::may_gather(std::size_t index) const {
  const Residence& residence = plan.residences[index];
  const std::size_t slots = gathered_slots.size(), mirror = plan.mirror_of(index);
  const bool backward = residence.first >= plan.forward_length;
  if (backward && plan.residences[mirror].stays) return left[mirror];
  if (index >= slots && !left[index - slots]) return false;
  return !backward || units[residence.unit]->state().kept.count == 0 || left[mirror];
}

// Starts every gather up to and including `residence` that may start; leave() starts those that had
// to wait, as happens when several units are open at once.
void Engine::Impl::gather_ahead(std::size_t residence) {
  wanted_gather = std::max(wanted_gather, residence);
  while (next_gather <= wanted_gather && next_gather < plan.residences.size() &&
         plan.residences[next_gather].first < pass_length() && may_gather(next_gather)) {
    gather(next_gather++);
  }
}

// Before the slot is used again.
void Engine::Impl::keep_inner_shard(Unit::State& unit, std::size_t slot) {
  GatheredSlot& from = gathered_slots[slot];
  const auto* whole = static_cast<const std::byte*>(from.memory.data());
  const auto index = static_cast<std::uint64_t>(sharding.inner.index);
  unit.is_kept = true;
  from.free = scheduler.run(
      Lane::gather, from.free,
      [&](Stream& stream) {
        stream.copy(unit.kept.data, whole + index * unit.kept.count, unit.kept.count);
        give_up(stream, from);
      },
      "keep");
}

void Engine::Impl::gather(std::size_t index) {
  if (is_there(index)) return;  // and compute is behind its gather since the last use
  const Residence& residence = plan.residences[index];
  const Unit::State& unit = units[residence.unit]->state();
  Stream& stream = scheduler.stream(Lane::gather);
  GatheredSlot& slot = gathered_slots[residence.slot];
  stream.wait(slot.free);
  give_up(stream, slot);
  hold_parameters(stream, slot, unit);
  if (unit.is_kept) {
    const View whole = slot.memory.view(DType::u8).part(0, unit.size.gathered);
    const Work work = scheduler.all_gather_inner(unit.kept, whole, {}, unit.name);
    if (sharding.inner.size() > 1) traffic.inner_bytes += whole.bytes();
  } else {
    stream.wait(unit.updated);
    for (const UnitBucket& bucket : unit.buckets) {
      gather_bucket(unit, bucket, gathered(bucket, residence.first), {});
    }
  }
  gathers[index] = scheduler.record(Lane::gather);
  slot.holds = residence.unit;
  slot.stale = false;
}

// One bucket's whole gradient, summed over the shard axis into `target`.
void Engine::Impl::reduce_shard(const Unit::State& unit, View whole, View target,
                                const Event& written) {
  if (!casts_gradients()) {
    const Work work = scheduler.reduce_scatter(whole, target, written, unit.name);
    traffic.shard_bytes += whole.bytes();
    return;
  }
  DeviceOps& ops = options.device.ops();
  const View from = cast_whole.view(options.precision.reduce).part(0, whole.count);
  const View to = cast_shard.view(options.precision.reduce).part(0, target.count);
  scheduler.run(
      Lane::reduce, written, [&](Stream& stream) { ops.cast(stream, from, whole); }, "cast");
  const Work work = scheduler.reduce_scatter(from, to, {}, unit.name);
  traffic.shard_bytes += from.bytes();
  ops.cast(scheduler.stream(Lane::reduce), target, to);
}

// The same across replicas, in place.
void Engine::Impl::reduce_across(const Unit::State& unit, View gradient, const Event& reduced) {
  View sent = gradient;
  if (casts_gradients()) {
    sent = cast_outer.view(options.precision.reduce).part(0, gradient.count);
    scheduler.run(
        Lane::outer, reduced,
        [&](Stream& stream) { options.device.ops().cast(stream, sent, gradient); }, "cast");
  }
  const Work work = scheduler.all_reduce(sent, reduced, unit.name);
  traffic.replicate_bytes += sent.bytes();
  if (casts_gradients()) {
    options.device.ops().cast(scheduler.stream(Lane::outer), gradient, sent);
  }
}

// Sums over the shard axis into the gradient shards; the event is their completion.
LaneEvent Engine::Impl::reduce_shards(Unit::State& unit, const Event& written) {
  Stream& stream = scheduler.stream(Lane::reduce);
  const bool adds = !sharding.kept_gradients && pass.micro > 0;
  if (!sharding.kept_gradients && pass.micro == 0) stream.wait(unit.gradient_final);
  for (const UnitBucket& bucket : unit.buckets) {
    if (!bucket.trainable) continue;
    const View whole = whole_gradient(unit, bucket);
    const View target =
        adds ? staging.view(DType::f32).part(0, bucket.gradient.count) : bucket.gradient;
    reduce_shard(unit, whole, target, written);
    if (adds) options.device.ops().add(stream, bucket.gradient, target);
  }
  if (sharding.kept_gradients) return scheduler.record(Lane::reduce);
  GradientSlot& slot = gradient_slots[plan.gradients[unit.index].slot];
  hold_nothing(stream, slot.memory);
  slot.free = scheduler.record(Lane::reduce);
  return slot.free;
}

void Engine::Impl::reduce(Unit::State& unit, const Event& written) {
  LaneEvent reduced = sharded() ? reduce_shards(unit, written) : written;
  const bool last = pass.micro + 1 == pass.of;
  const bool outer = last && replicated();
  if (outer) {
    for (const UnitBucket& bucket : unit.buckets) {
      if (!bucket.trainable) continue;
      reduce_across(unit, bucket.gradient, reduced);
    }
    reduced = scheduler.record(Lane::outer);
  }
  unit.reduced = reduced;
  if (last && on_gradient) {
    const Lane lane = outer ? Lane::outer : Lane::reduce;
    Stream& stream = scheduler.stream(lane);
    stream.wait(reduced);
    on_gradient(unit, stream);
    reduced = scheduler.record(lane);
  }
  unit.gradient_final = reduced;
}

}  // namespace atoll_v1::atoll::fsdp

#include "fsdp/gathering.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/operation_label.hpp"
#include "device/ops.hpp"
#include "fsdp/pass_observer.hpp"

namespace atoll_v1::atoll::fsdp {

void Gathering::seal() { slots_.resize(sharding_.resident ? 0 : plan_.gathered_slots.size()); }

void Gathering::masters_updated(std::size_t unit, const Event& event, Stale stale) {
  units_[unit].updated = event;
  units_[unit].stale = std::max(units_[unit].stale, stale);
  for (Slot& slot : slots_) {
    if (slot.content == unit) slot.stale = true;
  }
}

void Gathering::wait_updated(Stream& stream) const {
  for (const UnitParameters& unit : units_) stream.wait(unit.updated);
}

void Gathering::add_writer(Stream& stream) {
  std::erase_if(writers_,
                [&](const StreamLink& writer) { return *writer == nullptr || *writer == &stream; });
  writers_.push_back(stream.link());
}

// Skips destroyed streams, because their work is complete.
void Gathering::wait_written(Stream& stream) const {
  for (const StreamLink& writer : writers_) {
    if (*writer != nullptr) stream.wait((*writer)->record());
  }
}

void Gathering::synchronize_updates() const noexcept {
  for (const UnitParameters& unit : units_) settle(unit.updated);
}

void Gathering::begin_pass(const PassOptions& pass) {
  pass_ = pass;
  next_ = wanted_ = 0;
  resharded_.assign(plan_.unshards.size(), false);
  gathered_.assign(plan_.unshards.size(), LaneEvent());
  for (UnitParameters& unit : units_) unit.has_secondary_shard = false;
  if (sharding_.resident) {
    gather_resident();
  } else if (setup_.options.prefetch > 0) {
    gather_ahead(static_cast<std::size_t>(setup_.options.prefetch) - 1);
  }
}

void Gathering::unshard(Stream& compute, std::size_t position, std::string_view scope) {
  const std::size_t index = plan_.unshard_of[position];
  const Unshard& unshard = plan_.unshards[index];
  const UnitState& unit = setup_.state(unshard.unit);
  const bool first = position == unshard.first;
  if (sharding_.resident) {
    if (!first) return;
    compute.wait(units_[unit.index].updated);  // not recorded as exposed communication
    if (setup_.sharded()) scheduler_.wait(compute, units_[unit.index].gathered, unit.name);
    return;
  }
  gather_ahead(index + static_cast<std::size_t>(setup_.options.prefetch));
  if (next_ <= index) throw no_slot(index, scope);
  if (!first) return;
  // Compute waits for the update first, so that this time does not count as exposed communication.
  compute.wait(units_[unit.index].updated);
  scheduler_.wait(compute, gathered_[index], unit.name);
}

Error Gathering::no_slot(std::size_t index, std::string_view scope) const {
  // If the end of a scope failed, the scope still has its slot, so this failure is the reason.
  if (const auto failure = setup_.world().failure()) return *failure;
  const std::string& unit = setup_.state(plan_.unshards[index].unit).name;
  const std::size_t mirror = plan_.mirror_of(index);
  if (mirror < index && !resharded_[mirror]) {
    return invalid("{}({}): the forward scope of this unit is still open", scope, unit);
  }
  return invalid("{}({}): scopes of {} units would be open at once: use a prefetch of {} or more",
                 scope, unit, slots_.size() + 1, slots_.size());
}

void Gathering::reshard(Stream& compute, std::size_t position) {
  const std::size_t index = plan_.unshard_of[position];
  const Unshard& unshard = plan_.unshards[index];
  UnitParameters& unit = units_[unshard.unit];
  resharded_[index] = true;
  if (sharding_.resident) {
    unit.read = compute.record();
    return;
  }
  const bool backward_follows = is_training() && position < plan_.forward_length;
  const bool saves = backward_follows && setup_.state(unshard.unit).secondary_shard.count > 0 &&
                     !unit.has_secondary_shard && !unshard.stays_unsharded;
  if (!saves && !is_used_again(index)) empty(compute, unshard.slot);
  slots_[unshard.slot].free = compute.record();
  if (saves) save_secondary_shard(unshard.unit, unshard.slot);
  // Starts the gather now: the next scope would start it only after the reduction of this unit.
  gather_ahead(std::max(wanted_, index + 1 + static_cast<std::size_t>(setup_.options.prefetch)));
}

Event Gathering::cancel(Stream& compute) {
  // Waits for all gathers that were started, because they may still read the master parameters.
  for (std::size_t index = 0; index < next_; ++index) compute.wait(gathered_[index]);
  for (const UnitParameters& unit : units_) compute.wait(unit.gathered);
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) empty(compute, slot);
  Event ended = compute.record();
  for (Slot& slot : slots_) slot.free = ended;
  for (UnitParameters& unit : units_) unit.read = ended;
  return ended;
}

// Gathers every resident unit (a unit that stays unsharded between passes) for which the unsharded
// copy is older than the master parameters. Gathers them in the order of use, so that compute can
// begin with the first unit while others are gathered.
void Gathering::gather_resident() {
  const OperationLabel kind(label_of_pass());
  for (const std::size_t index : plan_.sequence) {
    const UnitState& unit = setup_.state(index);
    UnitParameters& parameters = units_[index];
    const Stale stale = std::exchange(parameters.stale, Stale::none);
    if (stale == Stale::none || !setup_.sharded()) continue;
    scheduler_.stream(Lane::gather).wait(parameters.updated);
    for (const UnitBucket& bucket : unit.buckets) {
      if (!bucket.trainable && stale != Stale::all) continue;
      gather_bucket(unit, bucket, bucket.unsharded, parameters.read);
    }
    parameters.gathered = scheduler_.record(Lane::gather);
  }
}

// Starts the gathers up to and including `index`, but stops at the first gather without a free slot
// (buffer for an unsharded unit). Slots are not free when scopes of several units are open at once;
// reshard() then starts the remaining gathers when a scope ends.
void Gathering::gather_ahead(std::size_t index) {
  const auto& unshards = plan_.unshards;
  const std::size_t end = is_training() ? plan_.sequence.size() : plan_.forward_length;
  wanted_ = std::max(wanted_, index);
  while (next_ <= wanted_ && next_ < unshards.size() && unshards[next_].first < end &&
         may_gather(next_)) {
    gather(next_++);
  }
}

bool Gathering::is_in_slot(const Unshard& unshard) const {
  const Slot& slot = slots_[unshard.slot];
  return slot.content == unshard.unit && !slot.stale;
}

// Returns true if the unit is used again before another unit needs its slot (buffer for an
// unsharded unit): in backward, or in the next micro batch, because forward begins with the units
// with which backward ends.
bool Gathering::is_used_again(std::size_t index) const {
  if (!is_training()) return false;
  const bool at_end = plan_.mirror_of(index) < slots_.size();
  return plan_.unshards[index].stays_unsharded || (at_end && pass_.micro + 1 < pass_.of);
}

// Returns true if the gather may be enqueued, which requires that its slot (buffer for an unsharded
// unit) is free. A gather for backward must also follow the end of the unit's forward if forward
// saves a secondary shard, from which backward gathers, or if the unit stays unsharded until
// backward.
bool Gathering::may_gather(std::size_t index) const {
  const Unshard& unshard = plan_.unshards[index];
  const std::size_t mirror = plan_.mirror_of(index);
  const bool backward = unshard.first >= plan_.forward_length;
  if (backward && plan_.unshards[mirror].stays_unsharded) return resharded_[mirror];
  if (index >= slots_.size() && !resharded_[index - slots_.size()]) return false;
  return !backward || setup_.state(unshard.unit).secondary_shard.count == 0 || resharded_[mirror];
}

void Gathering::gather(std::size_t index) {
  const Unshard& unshard = plan_.unshards[index];
  if (is_in_slot(unshard)) return;  // the unit is still unsharded in its slot
  const OperationLabel kind(label_of_pass());
  const UnitState& unit = setup_.state(unshard.unit);
  const UnitParameters& parameters = units_[unshard.unit];
  Stream& stream = scheduler_.stream(Lane::gather);
  Slot& slot = slots_[unshard.slot];
  stream.wait(slot.free);
  empty(stream, unshard.slot);
  PassObserver::hold_parameters(stream, storage_.parameter_slot(unshard.slot), unit);
  if (parameters.has_secondary_shard) {
    const View all =
        storage_.parameter_slot(unshard.slot).view(DType::u8).part(0, unit.size.gathered);
    const Work work = scheduler_.all_gather_secondary(unit.secondary_shard, all, {}, unit.name);
    if (sharding_.secondary.size() > 1) traffic_.secondary_bytes += all.bytes();
  } else {
    stream.wait(parameters.updated);
    for (const UnitBucket& bucket : unit.buckets) {
      gather_bucket(unit, bucket, storage_.unsharded(bucket, unshard.first), {});
    }
  }
  gathered_[index] = scheduler_.record(Lane::gather);
  slot.content = unshard.unit;
  slot.stale = false;
}

// Gathers one bucket into `unsharded`. The source is the compute copy of this rank's parameters or,
// if there is none, the master parameters. Master parameters of another dtype are first cast to the
// dtype of compute, in this rank's part of `unsharded`.
void Gathering::gather_bucket(const UnitState& unit, const UnitBucket& bucket, View unsharded,
                              const Event& after) {
  if (bucket.quantized) return gather_blocks(unit, bucket, unsharded);
  ConstView mine = bucket.compute_copy.count > 0 ? bucket.compute_copy : bucket.master;
  if (mine.dtype != bucket.dtype) {
    const std::uint64_t n = bucket.layout.shard_elements();
    const View part = unsharded.part(n * static_cast<std::uint64_t>(scheduler_.shard_index()), n);
    scheduler_.run(
        Lane::gather, after,
        [&](Stream& stream) { setup_.ops().cast(stream, part, bucket.master); }, "cast");
    mine = part;
  }
  const Work work = scheduler_.all_gather(mine, unsharded, after, unit.name);
  if (setup_.sharded()) traffic_.shard_bytes += unsharded.bytes();
}

// Gathers the blocks of a quantized bucket and converts them on the same lane, so the buffer for
// the blocks is free when the next gather begins.
void Gathering::gather_blocks(const UnitState& unit, const UnitBucket& bucket, View unsharded) {
  ConstView blocks = bucket.master;
  if (setup_.sharded()) {
    const View gathered = storage_.gathered_blocks(bucket);
    const Work work = scheduler_.all_gather(bucket.master, gathered, {}, unit.name);
    traffic_.shard_bytes += gathered.bytes();
    blocks = gathered;
  }
  scheduler_.run(
      Lane::gather, {}, [&](Stream& stream) { setup_.ops().dequantize(stream, unsharded, blocks); },
      "dequantize");
}

// Copies this rank's secondary shard, from which backward gathers the unit, out of the slot (buffer
// for an unsharded unit). The slot is free after the copy.
void Gathering::save_secondary_shard(std::size_t index, std::size_t slot) {
  const View to = setup_.state(index).secondary_shard;
  const auto* from = static_cast<const std::byte*>(storage_.parameter_slot(slot).data());
  from += static_cast<std::uint64_t>(sharding_.secondary.index) * to.count;
  units_[index].has_secondary_shard = true;
  slots_[slot].free = scheduler_.run(
      Lane::gather, slots_[slot].free,
      [&](Stream& stream) {
        stream.copy(to.data, from, to.count);
        empty(stream, slot);
      },
      "keep");
}

void Gathering::empty(Stream& stream, std::size_t slot) {
  if (slots_[slot].content) PassObserver::hold_nothing(stream, storage_.parameter_slot(slot));
  slots_[slot].content.reset();
}

}  // namespace atoll_v1::atoll::fsdp

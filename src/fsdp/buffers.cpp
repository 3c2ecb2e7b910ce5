// The memory of an engine: one allocation per category, and which part of it each bucket has.
#include <fmt/core.h>

#include <algorithm>

#include "device/backend.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

// Hands out parts of an allocation in turn.
class Parts {
 public:
  explicit Parts(const Buffer& buffer) : buffer_(buffer) {}
  View next(std::uint64_t count, DType dtype) {
    View part(static_cast<std::byte*>(buffer_.data()) + offset_, count, dtype);
    offset_ += part.bytes();
    return part;
  }

 private:
  const Buffer& buffer_;
  std::uint64_t offset_ = 0;
};

constexpr std::string_view parameters_of = "parameters of", gradient_of = "gradient of";

void hold(Stream& stream, View memory, std::string_view what, const Unit::State& unit) {
  stream.backend().hold(memory.data, memory.bytes(), {what, unit.name});
}

DType master_dtype(const UnitBucket& bucket) {
  return bucket.trainable ? DType::f32 : bucket.dtype;
}

}  // namespace

void Engine::Impl::set_zero(const Buffer& buffer) {
  Stream& stream = scheduler.stream(Lane::gather);
  stream.zero(buffer.data(), buffer.bytes());
  stream.synchronize();
}

// Sizes alone, so that a plan that is too large is refused before anything is allocated.
void Engine::Impl::plan_memory() {
  const auto shards = static_cast<std::uint64_t>(scheduler.shard_count());
  std::uint64_t whole = 0, largest = 0;
  for (const auto& unit : units) {
    const Unit::State& state = unit->state();
    if (sharding.resident) memory.resident += state.size.gathered;
    if (!sharding.inner.ranks.empty()) {
      memory.kept += state.size.gathered / static_cast<std::uint64_t>(sharding.inner.size());
    }
    whole += state.size.gradient;
    for (const UnitBucket& bucket : state.buckets) {
      const std::uint64_t n = bucket.layout.shard_elements();
      if (has_master_apart(bucket)) memory.parameters += n * size_of(master_dtype(bucket));
      if (bucket.trainable) largest = std::max(largest, n);
    }
  }
  memory.gradients = whole / shards;
  if (!sharding.resident) {
    for (const std::uint64_t bytes : plan.gathered_slots) memory.gathered += bytes;
  }
  if (sharding.kept_gradients) {
    memory.whole_gradients = whole - memory.gradients;
  } else {
    memory.staging = staging_bytes = largest * sizeof(float);
    for (const std::uint64_t bytes : plan.gradient_slots) memory.whole_gradients += bytes;
  }
  if (casts_gradients()) memory.staging += plan_casts(largest);
  memory.staging += plan_scratch(largest);
  if (options.memory_bytes == 0 || memory.total() <= options.memory_bytes) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("freeze: the plan is over {} bytes{}\n{}", options.memory_bytes,
                          sharding.kept_gradients && sharded()
                              ? ": with accumulation shard it keeps no whole gradients"
                              : "",
                          memory.to_string()));
}

// Of the largest bucket, whose shard has so many elements.
std::uint64_t Engine::Impl::plan_casts(std::uint64_t shard_elements) {
  const std::uint64_t shard = shard_elements * size_of(options.precision.reduce);
  const auto shards = static_cast<std::uint64_t>(scheduler.shard_count());
  cast_bytes = {sharded() ? shard * shards : 0, sharded() ? shard : 0, replicated() ? shard : 0};
  return cast_bytes[0] + cast_bytes[1] + cast_bytes[2];
}

// Of sums that the library builds, for the same bucket.
std::uint64_t Engine::Impl::plan_scratch(std::uint64_t shard_elements) {
  const DType dtype = casts_gradients() ? options.precision.reduce : DType::f32;
  scratch_bytes = {sharded() ? scheduler.scratch_bytes(Lane::reduce, shard_elements, dtype) : 0,
                   replicated() ? scheduler.scratch_bytes(Lane::outer, shard_elements, dtype) : 0};
  return scratch_bytes[0] + scratch_bytes[1];
}

void Engine::Impl::allocate() {
  plan_memory();
  scheduler.reserve_scratch(Lane::reduce, scratch_bytes[0]);
  scheduler.reserve_scratch(Lane::outer, scratch_bytes[1]);
  place_parameters();
  place_gradients();
  allocate_slots();
  tell_places();
}

// A master that is not among the resident parameters.
bool Engine::Impl::has_master_apart(const UnitBucket& bucket) const {
  return !sharding.resident || master_dtype(bucket) != bucket.dtype;
}

// Resident parameters hold their own shard's master, or its copy in the compute dtype, where a
// gather starts from: in place.
void Engine::Impl::place_parameters() {
  masters = scheduler.allocate(memory.parameters, {Lane::gather});
  residents = scheduler.allocate(memory.resident, {Lane::gather});
  Parts of_masters(masters), of_residents(residents);
  const auto index = static_cast<std::uint64_t>(scheduler.shard_index());
  for (const auto& unit : units) {
    for (UnitBucket& bucket : unit->state().buckets) {
      const std::uint64_t n = bucket.layout.shard_elements();
      const bool apart = has_master_apart(bucket);
      if (apart) bucket.master = of_masters.next(n, master_dtype(bucket));
      if (!sharding.resident) continue;
      bucket.whole = of_residents.next(bucket.layout.elements, bucket.dtype);
      (apart ? bucket.low : bucket.master) = bucket.whole.part(n * index, n);
    }
  }
  // Padding stays zero for ever: it adds nothing to a norm, and an optimizer does not move it.
  set_zero(masters);
  set_zero(residents);
}

// A whole gradient that is kept holds this rank's shard, into which it is reduced: in place.
void Engine::Impl::place_gradients() {
  if (sharding.kept_gradients) {
    kept_gradients =
        scheduler.allocate(memory.gradients + memory.whole_gradients, {Lane::reduce, Lane::outer});
  } else {
    gradients = scheduler.allocate(memory.gradients, {Lane::reduce, Lane::outer});
    staging = scheduler.allocate(staging_bytes, {Lane::reduce});
  }
  cast_whole = scheduler.allocate(cast_bytes[0], {Lane::reduce});
  cast_shard = scheduler.allocate(cast_bytes[1], {Lane::reduce});
  cast_outer = scheduler.allocate(cast_bytes[2], {Lane::outer});
  Parts of_shards(gradients), of_wholes(kept_gradients);
  for (const auto& unit : units) {
    for (UnitBucket& bucket : unit->state().buckets) {
      if (!bucket.trainable) continue;
      const std::uint64_t n = bucket.layout.shard_elements();
      if (sharding.kept_gradients) {
        bucket.whole_gradient = of_wholes.next(bucket.layout.elements, DType::f32);
        bucket.gradient =
            bucket.whole_gradient.part(n * static_cast<std::uint64_t>(scheduler.shard_index()), n);
      } else {
        bucket.gradient = of_shards.next(n, DType::f32);
      }
    }
  }
  set_zero(gradients);
  set_zero(kept_gradients);
}

void Engine::Impl::allocate_slots() {
  if (!sharding.inner.ranks.empty()) {
    const auto shards = static_cast<std::uint64_t>(sharding.inner.size());
    kept = scheduler.allocate(memory.kept, {Lane::gather});
    Parts of_kept(kept);
    for (const auto& unit : units) {
      unit->state().kept = of_kept.next(unit->state().size.gathered / shards, DType::u8);
    }
  }
  if (!sharding.resident) {
    for (const std::uint64_t bytes : plan.gathered_slots) {
      gathered_slots.push_back({scheduler.allocate(bytes, {Lane::gather}), {}, {}});
    }
  }
  if (!sharding.kept_gradients) {
    for (const std::uint64_t bytes : plan.gradient_slots) {
      gradient_slots.push_back({scheduler.allocate(bytes, {Lane::reduce}), {}, {}});
    }
  }
}

void Engine::Impl::tell_scope(const Unit::State& unit, std::size_t at) const {
  StreamBackend& stream = compute->backend();
  const bool backward = at >= plan.forward_length;
  const Label by{backward ? "backward" : "forward", unit.name};
  for (const UnitBucket& bucket : unit.buckets) {
    const View whole = gathered(bucket, at);
    stream.use(whole.data, whole.bytes(), Access::read, by, {parameters_of, unit.name});
    if (!backward || !bucket.trainable) continue;
    const View gradient = whole_gradient(unit, bucket);
    stream.use(gradient.data, gradient.bytes(), Access::write, by, {gradient_of, unit.name});
  }
}

void Engine::Impl::hold_parameters(Stream& stream, const GatheredSlot& slot,
                                   const Unit::State& unit) {
  hold(stream, slot.memory.view(DType::u8), parameters_of, unit);
}

void Engine::Impl::hold_gradient(Stream& stream, const GradientSlot& slot,
                                 const Unit::State& unit) {
  hold(stream, slot.memory.view(DType::u8), gradient_of, unit);
}

void Engine::Impl::hold_nothing(Stream& stream, const Buffer& slot) {
  stream.backend().hold(slot.data(), slot.bytes(), {});
}

void Engine::Impl::tell_places() {
  Stream& stream = scheduler.stream(Lane::gather);
  for (const auto& entry : units) {
    const Unit::State& unit = entry->state();
    hold(stream, unit.kept, "inner shard of", unit);
    for (const UnitBucket& bucket : unit.buckets) {
      hold(stream, bucket.whole, parameters_of, unit);
      const bool among_whole = sharding.resident && bucket.low.count == 0;
      if (!among_whole) hold(stream, bucket.master, "masters of", unit);
      hold(stream, bucket.whole_gradient, gradient_of, unit);
      if (!sharding.kept_gradients) hold(stream, bucket.gradient, "gradient shard of", unit);
    }
  }
  stream.backend().hold(staging.data(), staging.bytes(), {"staging of further micro batches"});
  for (const Buffer* casts : {&cast_whole, &cast_shard, &cast_outer}) {
    stream.backend().hold(casts->data(), casts->bytes(), {"gradients as they travel"});
  }
  for (const GatheredSlot& slot : gathered_slots) hold_nothing(stream, slot.memory);
  for (const GradientSlot& slot : gradient_slots) hold_nothing(stream, slot.memory);
  stream.synchronize();
}

View Engine::Impl::gathered(const UnitBucket& bucket, std::size_t at) const {
  if (sharding.resident) return bucket.whole;
  const Residence& residence = plan.residences[plan.residence_of[at]];
  auto* memory_of_unit = static_cast<std::byte*>(gathered_slots[residence.slot].memory.data());
  return {memory_of_unit + bucket.gathered_offset, bucket.layout.elements, bucket.dtype};
}

View Engine::Impl::whole_gradient(const Unit::State& unit, const UnitBucket& bucket) const {
  if (sharding.kept_gradients) return bucket.whole_gradient;
  return gradient_slots[plan.gradients[unit.index].slot]
      .memory.view(DType::f32)
      .part(bucket.gradient_offset, bucket.layout.elements);
}

}  // namespace atoll_v1::atoll::fsdp

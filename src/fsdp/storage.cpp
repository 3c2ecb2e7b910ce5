#include "fsdp/storage.hpp"

#include <algorithm>
#include <numeric>

#include "core/errors.hpp"
#include "device/int8_blocks.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

// Cuts an allocation into consecutive views.
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

DType master_dtype(const UnitBucket& bucket) {
  if (bucket.quantized) return DType::u8;
  return bucket.trainable ? DType::f32 : bucket.dtype;
}

// Returns the number of elements of master_dtype() that store `elements` parameter elements.
std::uint64_t master_count(const UnitBucket& bucket, std::uint64_t elements) {
  return bucket.quantized ? int8_bytes(elements) : elements;
}

}  // namespace

std::uint64_t MemoryPlan::total() const noexcept {
  return parameters + resident + optimizer + gradients + gathered + secondary_shards +
         whole_gradients + staging + activations;
}

namespace {

struct MemoryRow {
  std::string_view what;
  std::uint64_t bytes;
};

std::array<MemoryRow, 10> rows_of(const MemoryPlan& plan) {
  return {{{"parameters (master shards)", plan.parameters},
           {"parameters (whole, resident)", plan.resident},
           {"optimizer", plan.optimizer},
           {"gradients (f32 shards)", plan.gradients},
           {"parameters (gathered while used)", plan.gathered},
           {"parameters (secondary shards)", plan.secondary_shards},
           {"whole gradients", plan.whole_gradients},
           {"staging", plan.staging},
           {"activations (set by the caller)", plan.activations},
           {"total", plan.total()}}};
}

// Returns the parts of the plan that are not 0 on one line, for errors.
std::string line_of(const MemoryPlan& plan) {
  std::string text;
  for (const auto& [what, bytes] : rows_of(plan)) {
    if (bytes > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, bytes);
  }
  return text;
}

}  // namespace

std::string MemoryPlan::to_string() const {
  std::string text = fmt::format("{:<34}{:>16}{:>11}\n", "memory of this rank", "bytes", "GiB");
  for (const auto& [what, bytes] : rows_of(*this)) {
    constexpr double gib = 1U << 30U;
    text += fmt::format("  {:<32}{:>16}{:>11.3f}\n", what, bytes, static_cast<double>(bytes) / gib);
  }
  return text;
}

void Storage::plan_memory() {
  std::uint64_t unsharded_gradients = 0;
  std::uint64_t largest = 0;  // number of elements of the largest trainable shard
  for (const auto& entry : setup_.units) {
    const UnitState& unit = state_of(*entry);
    if (sharding_.resident) memory_.resident += unit.size.gathered;
    if (!sharding_.secondary.ranks.empty()) {
      memory_.secondary_shards +=
          unit.size.gathered / static_cast<std::uint64_t>(sharding_.secondary.size());
    }
    unsharded_gradients += unit.size.gradient;
    for (const UnitBucket& bucket : unit.buckets) {
      const std::uint64_t n = bucket.layout.shard_elements();
      if (has_separate_master(bucket))
        memory_.parameters += master_count(bucket, n) * size_of(master_dtype(bucket));
      if (bucket.trainable) largest = std::max(largest, n);
      if (bucket.quantized && setup_.sharded())
        blocks_bytes_ = std::max(blocks_bytes_, int8_bytes(bucket.layout.elements));
    }
  }
  memory_.gradients = unsharded_gradients / static_cast<std::uint64_t>(scheduler_.shard_count());
  if (!sharding_.resident)
    memory_.gathered = std::reduce(plan_.gathered_slots.begin(), plan_.gathered_slots.end());
  if (sharding_.accumulates_unsharded) {
    memory_.whole_gradients = unsharded_gradients - memory_.gradients;
  } else {
    memory_.staging = staging_bytes_ = largest * sizeof(float);
    memory_.whole_gradients = std::reduce(plan_.gradient_slots.begin(), plan_.gradient_slots.end());
  }
  if (setup_.casts_gradients()) memory_.staging += plan_casts(largest);
  memory_.staging += plan_scratch() + blocks_bytes_;
  const std::uint64_t limit = setup_.options.memory_bytes;
  if (limit == 0 || memory_.total() <= limit) return;
  throw invalid(
      "seal: the plan needs more than the {} bytes of Options::memory_bytes{}; the plan: {}", limit,
      sharding_.accumulates_unsharded && setup_.sharded()
          ? "; Accumulation::shard avoids unsharded gradients"
          : "",
      line_of(memory_));
}

std::uint64_t Storage::plan_casts(std::uint64_t shard_elements) {
  const std::uint64_t shard = shard_elements * size_of(setup_.options.precision.reduce);
  const auto shards = static_cast<std::uint64_t>(scheduler_.shard_count());
  cast_bytes_ = {setup_.sharded() ? shard * shards : 0, setup_.sharded() ? shard : 0,
                 setup_.replicated() ? shard : 0};
  return cast_bytes_[0] + cast_bytes_[1] + cast_bytes_[2];
}

// Plans the scratch memory of reductions that the library composes: fallbacks, and sums in two
// levels. Asks for each bucket: whether a sum takes two levels depends on its size, so the largest
// bucket may need less than a smaller one.
std::uint64_t Storage::plan_scratch() {
  const DType dtype = setup_.options.precision.reduce;
  const auto plan = [&](std::uint64_t& most, bool used, Lane lane, std::uint64_t shard_elements) {
    if (used) most = std::max(most, scheduler_.scratch_bytes(lane, shard_elements, dtype));
  };
  scratch_bytes_ = {};
  for (const auto& unit : setup_.units) {
    for (const UnitBucket& bucket : state_of(*unit).buckets) {
      if (!bucket.trainable) continue;
      const std::uint64_t n = bucket.layout.shard_elements();
      plan(scratch_bytes_[0], setup_.sharded(), Lane::reduce, n);
      plan(scratch_bytes_[1], setup_.replicated(), Lane::replicate, n);
    }
  }
  return scratch_bytes_[0] + scratch_bytes_[1];
}

void Storage::allocate() {
  scheduler_.reserve_scratch(Lane::reduce, scratch_bytes_[0]);
  scheduler_.reserve_scratch(Lane::replicate, scratch_bytes_[1]);
  allocate_parameters();
  allocate_gradients();
  allocate_slots();
}

// Returns false if the resident parameters, which stay unsharded, contain the master parameters of
// a bucket as this rank's part.
bool Storage::has_separate_master(const UnitBucket& bucket) const {
  return !sharding_.resident || master_dtype(bucket) != bucket.dtype;
}

// Allocates master parameters and resident parameters, which stay unsharded between passes. This
// rank's part of the resident parameters is the master parameters themselves or their compute copy,
// so that all-gathers work in place.
void Storage::allocate_parameters() {
  masters_ = scheduler_.allocate(memory_.parameters, {Lane::gather});
  residents_ = scheduler_.allocate(memory_.resident, {Lane::gather});
  blocks_ = scheduler_.allocate(blocks_bytes_, {Lane::gather});
  Parts of_masters(masters_), of_residents(residents_);
  const auto index = static_cast<std::uint64_t>(scheduler_.shard_index());
  for (const auto& unit : setup_.units) {
    for (UnitBucket& bucket : state_of(*unit).buckets) {
      const std::uint64_t n = bucket.layout.shard_elements();
      const bool separate = has_separate_master(bucket);
      if (separate) {
        bucket.master = of_masters.next(master_count(bucket, n), master_dtype(bucket));
      }
      if (!sharding_.resident) continue;
      bucket.unsharded = of_residents.next(bucket.layout.elements, bucket.dtype);
      (separate ? bucket.compute_copy : bucket.master) = bucket.unsharded.part(n * index, n);
    }
  }
  // Padding is zero and stays zero, because optimizers do not change it. So padding does not affect
  // a norm.
  setup_.set_zero(masters_);
  setup_.set_zero(residents_);
}

// Allocates gradients. An unsharded gradient that accumulates over micro batches contains this
// rank's gradient shard, so that reduce-scatters work in place.
void Storage::allocate_gradients() {
  const bool accumulates = sharding_.accumulates_unsharded;
  if (accumulates) {
    unsharded_gradients_ = scheduler_.allocate(memory_.gradients + memory_.whole_gradients,
                                               {Lane::reduce, Lane::replicate});
  } else {
    gradients_ = scheduler_.allocate(memory_.gradients, {Lane::reduce, Lane::replicate});
    staging_ = scheduler_.allocate(staging_bytes_, {Lane::reduce});
  }
  cast_unsharded_ = scheduler_.allocate(cast_bytes_[0], {Lane::reduce});
  cast_shard_ = scheduler_.allocate(cast_bytes_[1], {Lane::reduce});
  cast_replicate_ = scheduler_.allocate(cast_bytes_[2], {Lane::replicate});
  Parts of_shards(gradients_), of_unsharded(unsharded_gradients_);
  const auto index = static_cast<std::uint64_t>(scheduler_.shard_index());
  for (const auto& unit : setup_.units) {
    for (UnitBucket& bucket : state_of(*unit).buckets) {
      if (!bucket.trainable) continue;
      const std::uint64_t n = bucket.layout.shard_elements();
      if (accumulates) {
        bucket.unsharded_gradient = of_unsharded.next(bucket.layout.elements, DType::f32);
        bucket.gradient = bucket.unsharded_gradient.part(n * index, n);
      } else {
        bucket.gradient = of_shards.next(n, DType::f32);
      }
    }
  }
  setup_.set_zero(gradients_);
  setup_.set_zero(unsharded_gradients_);
}

void Storage::allocate_slots() {
  if (!sharding_.secondary.ranks.empty()) {
    const auto shards = static_cast<std::uint64_t>(sharding_.secondary.size());
    secondary_shards_ = scheduler_.allocate(memory_.secondary_shards, {Lane::gather});
    Parts parts(secondary_shards_);
    for (const auto& entry : setup_.units) {
      UnitState& unit = state_of(*entry);
      unit.secondary_shard = parts.next(unit.size.gathered / shards, DType::u8);
    }
  }
  if (!sharding_.resident) {
    for (const std::uint64_t bytes : plan_.gathered_slots) {
      parameter_slots_.push_back(scheduler_.allocate(bytes, {Lane::gather}));
    }
  }
  if (!sharding_.accumulates_unsharded) {
    for (const std::uint64_t bytes : plan_.gradient_slots) {
      gradient_slots_.push_back(scheduler_.allocate(bytes, {Lane::reduce}));
    }
  }
}

View Storage::unsharded(const UnitBucket& bucket, std::size_t position) const {
  if (sharding_.resident) return bucket.unsharded;
  const Buffer& slot = parameter_slots_[plan_.unshards[plan_.unshard_of[position]].slot];
  return {static_cast<std::byte*>(slot.data()) + bucket.gathered_offset, bucket.layout.elements,
          bucket.dtype};
}

View Storage::unsharded_gradient(const UnitState& unit, const UnitBucket& bucket) const {
  if (sharding_.accumulates_unsharded) return bucket.unsharded_gradient;
  return gradient_slots_[plan_.gradients[unit.index].slot]
      .view(DType::f32)
      .part(bucket.gradient_offset, bucket.layout.elements);
}

View Storage::gathered_blocks(const UnitBucket& bucket) const {
  return blocks_.view(DType::u8).part(0, int8_bytes(bucket.layout.elements));
}

View Storage::staging(std::uint64_t elements) const {
  return staging_.view(DType::f32).part(0, elements);
}

View Storage::cast_view(const Buffer& buffer, std::uint64_t elements) const {
  return buffer.view(setup_.options.precision.reduce).part(0, elements);
}

std::vector<Storage::Content> Storage::contents() const {
  std::vector<Content> all;
  for (const auto& entry : setup_.units) {
    const UnitState& unit = state_of(*entry);
    const auto add = [&](const View& memory, std::string_view what) {
      all.push_back({memory, {what, unit.name}});
    };
    add(unit.secondary_shard, "secondary shard of");
    for (const UnitBucket& bucket : unit.buckets) {
      add(bucket.unsharded, parameters_of);
      const bool is_part_of_unsharded = sharding_.resident && bucket.compute_copy.count == 0;
      if (!is_part_of_unsharded) add(bucket.master, "masters of");
      add(bucket.unsharded_gradient, gradient_of);
      if (!sharding_.accumulates_unsharded) add(bucket.gradient, "gradient shard of");
    }
  }
  const auto add = [&](const Buffer& buffer, std::string_view what) {
    all.push_back({buffer.view(DType::u8), {what}});
  };
  add(staging_, "staging of reduced gradient shards");
  for (const Buffer* casts : {&cast_unsharded_, &cast_shard_, &cast_replicate_}) {
    add(*casts, "gradients in the type in which they are sent");
  }
  add(blocks_, "gathered blocks of 8-bit integers");
  for (const Buffer& slot : parameter_slots_) add(slot, {});
  for (const Buffer& slot : gradient_slots_) add(slot, {});
  return all;
}

}  // namespace atoll_v1::atoll::fsdp

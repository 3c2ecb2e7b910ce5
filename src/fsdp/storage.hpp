// Storage owns the device memory of an engine. It is allocated once, as MemoryPlan describes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "device/backend.hpp"
#include "fsdp/setup.hpp"

namespace atoll_v1::atoll::fsdp {

// Content of unsharded buffers in messages of the lifetime checker, before the name of the unit.
inline constexpr std::string_view parameters_of = "parameters of", gradient_of = "gradient of";

// Owns every buffer that passes use. allocate() sets the views of all units; no memory is allocated
// or moved afterwards. Storage knows where data is, while Gathering, Reducing and PassState decide
// when the data may be used.
class Storage {
 public:
  explicit Storage(EngineSetup& setup) : setup_(setup) {}

  // Plans all buffers. If the plan exceeds Options::memory_bytes, throws Error(invalid_argument)
  // that shows the plan.
  void plan_memory();
  // Allocates what plan_memory() has planned. Collective. Master parameters and gradients are
  // filled with zeros.
  void allocate();
  MemoryPlan& plan() noexcept { return memory_; }

  // Returns the unsharded bucket that compute reads at a position of the pass.
  View unsharded(const UnitBucket& bucket, std::size_t position) const;
  // Returns the unsharded gradient of a bucket, which compute writes.
  View unsharded_gradient(const UnitState& unit, const UnitBucket& bucket) const;
  const Buffer& parameter_slot(std::size_t slot) const { return parameter_slots_[slot]; }
  const Buffer& gradient_slot(std::size_t slot) const { return gradient_slots_[slot]; }
  // Returns the buffer for a reduced gradient shard that will be added to the sum of earlier micro
  // batches.
  View staging(std::uint64_t elements) const;
  // These functions return buffers for gradients in the type Precision::reduce: for the unsharded
  // gradient, for the reduced shard, and for the shard that is summed across replicas.
  View cast_unsharded(std::uint64_t elements) const { return cast_view(cast_unsharded_, elements); }
  View cast_shard(std::uint64_t elements) const { return cast_view(cast_shard_, elements); }
  View cast_replicate(std::uint64_t elements) const { return cast_view(cast_replicate_, elements); }
  // Returns the buffer for the gathered blocks of a quantized bucket.
  View gathered_blocks(const UnitBucket& bucket) const;

  // What a buffer holds, for the lifetime checker.
  struct Content {
    View memory;
    Label content;
  };
  // Returns the content of each buffer whose content never changes. Slots (buffers that units use
  // in turn) are empty.
  std::vector<Content> contents() const;

 private:
  std::uint64_t plan_casts(std::uint64_t shard_elements);
  std::uint64_t plan_scratch();
  bool has_separate_master(const UnitBucket& bucket) const;
  void allocate_parameters();
  void allocate_gradients();
  void allocate_slots();
  View cast_view(const Buffer& buffer, std::uint64_t elements) const;

  EngineSetup& setup_;
  Scheduler& scheduler_ = setup_.scheduler;
  const Sharding& sharding_ = setup_.sharding;
  const PassPlan& plan_ = setup_.plan;
  MemoryPlan memory_;
  // Sizes in bytes of the buffers for gradients in the type in which they are sent:
  // cast_unsharded_, cast_shard_ and cast_replicate_.
  std::array<std::uint64_t, 3> cast_bytes_{};
  // Bytes of scratch memory for the lanes (communication streams) `reduce` and `replicate`.
  std::array<std::uint64_t, 2> scratch_bytes_{};
  std::uint64_t staging_bytes_ = 0;
  std::uint64_t blocks_bytes_ = 0;  // blocks of the largest quantized bucket, of all shards
  Buffer masters_, residents_, secondary_shards_, gradients_, unsharded_gradients_, staging_;
  Buffer cast_unsharded_, cast_shard_, cast_replicate_;
  Buffer blocks_;
  std::vector<Buffer> parameter_slots_, gradient_slots_;
};

}  // namespace atoll_v1::atoll::fsdp

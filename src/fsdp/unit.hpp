// The layout of a unit: its buckets, and the memory that Storage gives to each of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/fsdp.hpp"
#include "fsdp/plan.hpp"

namespace atoll_v1::atoll::fsdp {

// Parameters of a unit that travel together: they share one dtype and are all trainable or all
// frozen. The views are set by Storage::allocate().
struct UnitBucket {
  DType dtype = DType::f32;  // the type that compute reads
  bool trainable = true;
  BucketLayout layout;
  std::uint64_t gathered_offset = 0;  // bytes into the unit's slot of unsharded parameters
  std::uint64_t gradient_offset = 0;  // elements into the unit's slot of unsharded gradients

  View master;              // the sharded parameter: f32, or `dtype` when the bucket is frozen
  View compute_copy;        // the master in `dtype`, written by each update; empty when not needed
  View unsharded;           // resident parameters; empty when they are gathered into a slot
  View gradient;            // the sharded gradient, f32
  View unsharded_gradient;  // accumulates over micro batches; empty when gradients use slots

  std::string label() const;  // "f32", "bf16", "frozen f32": unique in its unit
};

struct UnitState {
  // The bucket that holds a parameter, and the part of that bucket.
  struct Location {
    std::size_t bucket = 0;
    BucketSlot slot;
  };

  // Error(invalid_argument, unsupported) names the unit and the parameter at fault.
  UnitState(std::string_view name, std::size_t index, std::vector<ParamSpec> params);
  // Assigns parameters without a dtype of their own to `param_dtype`.
  void make_buckets(DType param_dtype, std::uint64_t shards);
  std::size_t find(std::string_view param) const;  // index in params; Error(not_found)

  std::string name;
  std::size_t index;  // position in Engine::units()
  std::vector<ParamSpec> params;
  std::vector<UnitBucket> buckets;
  std::vector<Location> locations;  // one per parameter
  UnitSize size;
  View inner_shard;  // bytes of this rank's inner shard; empty without partial resharding
};

}  // namespace atoll_v1::atoll::fsdp

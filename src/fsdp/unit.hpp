// The layout of a unit: its buckets, and the memory that Storage gives to each of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/optimizer.hpp"
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

  // Parameters without a dtype of their own have `param_dtype`. Error(invalid_argument,
  // unsupported) names the unit and the parameter at fault.
  UnitState(std::string_view name, std::size_t index, std::vector<ParamSpec> params,
            DType param_dtype, std::uint64_t shards);
  std::size_t find(std::string_view param) const;  // index in params; Error(not_found)

  std::string name;
  std::size_t index;  // position in Engine::units()
  std::vector<ParamSpec> params;
  std::vector<UnitBucket> buckets;
  std::vector<Location> locations;  // one per parameter
  UnitSize size;
  View inner_shard;  // bytes of this rank's inner shard; empty without partial resharding
};

struct EngineSetup;
class Storage;
class Gathering;
class Reducing;
class PassState;

// The optimizer's moments of a bucket or of a part of it; empty without moments.
struct Moments {
  View first, second;
};

// A friend of the public classes. References live as long as the engine.
struct EngineAccess {
  static std::unique_ptr<Unit> make_unit(std::unique_ptr<UnitState> state) {
    return std::unique_ptr<Unit>(new Unit(std::move(state)));
  }
  static UnitState& state(const Unit& unit) noexcept { return *unit.state_; }
  static EngineSetup& setup(Engine& engine) noexcept;
  static Gathering& gathering(Engine& engine) noexcept;
  static Reducing& reducing(Engine& engine) noexcept;
  static PassState& pass(Engine& engine) noexcept;
  static Moments moments(const Optimizer& optimizer, const Unit& unit, std::size_t bucket);
};

inline UnitState& state_of(const Unit& unit) noexcept { return EngineAccess::state(unit); }

}  // namespace atoll_v1::atoll::fsdp

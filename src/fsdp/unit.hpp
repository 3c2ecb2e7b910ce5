// The layout of a unit: its buckets, and the memory that Storage assigns to each bucket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/optimizer.hpp"
#include "fsdp/plan.hpp"

namespace atoll_v1::atoll::fsdp {

// The parameters of a unit that one collective moves. All have the same dtype, all are trainable or
// all are frozen, and all are quantized or none is. Storage::allocate() sets the views.
struct UnitBucket {
  DType dtype = DType::f32;  // type of the parameters as compute reads them
  bool trainable = true;
  bool quantized = false;  // ranks keep and send blocks of 8-bit integers (int8_blocks.hpp)
  BucketLayout layout;
  // Position of the bucket in the unit's parameter slot, in bytes.
  std::uint64_t gathered_offset = 0;
  // Position of the bucket in the unit's gradient slot, in f32 elements.
  std::uint64_t gradient_offset = 0;

  // This rank's part of the parameters: f32; `dtype` if the bucket is frozen; the bytes of the
  // blocks, as u8, if it is quantized.
  View master;
  View compute_copy;        // copy of the master parameters in `dtype`; empty if not needed
  View unsharded;           // parameters that stay unsharded; empty if units share buffers in turn
  View gradient;            // sharded gradient in f32
  View unsharded_gradient;  // gradient sum over micro batches; empty if units share buffers

  std::string label() const;  // name that is unique in the unit, such as "frozen f32"
};

struct UnitState {
  // The bucket that contains a parameter, and the position of the parameter in the bucket.
  struct Location {
    std::size_t bucket = 0;
    BucketSlot slot;
  };

  // Parameters without ParamSpec::dtype get `param_dtype`. Throws Error(invalid_argument) or
  // Error(unsupported), which name the unit and the invalid parameter.
  UnitState(std::string_view name, std::size_t index, std::vector<ParamSpec> params,
            DType param_dtype, std::uint64_t shards);
  // Returns the index in `params` of the parameter with this name; throws Error(not_found).
  std::size_t find(std::string_view param) const;

  std::string name;
  std::size_t index;  // index of the unit in Engine::units()
  std::vector<ParamSpec> params;
  std::vector<UnitBucket> buckets;
  std::vector<Location> locations;  // bucket and position of each parameter
  UnitSize size;
  View secondary_shard;  // bytes of this rank's secondary shard; empty without partial resharding
};

struct EngineSetup;
class Storage;
class Gathering;
class Reducing;
class PassState;

// The first and second moments of a bucket or of a part of a bucket; empty for an optimizer without
// moments.
struct Moments {
  View first, second;
};

// Gives src/fsdp access to private members of the public classes. References are valid as long as
// the engine exists.
struct EngineAccess {
  static std::unique_ptr<Unit> make_unit(std::unique_ptr<UnitState> state) {
    return std::unique_ptr<Unit>(new Unit(std::move(state)));
  }
  static UnitState& state(const Unit& unit) noexcept { return *unit.state_; }
  static EngineSetup& setup(const Engine& engine) noexcept;
  static Gathering& gathering(Engine& engine) noexcept;
  static Reducing& reducing(Engine& engine) noexcept;
  static PassState& pass(Engine& engine) noexcept;
  static const EngineLink& link(const Engine& engine) noexcept;
  // Do the work of these functions of Engine, but do not declare that the parameters have values.
  static void parameters_changed(Engine& engine, Stream& compute);
  static void refresh(Engine& engine);
  // Does the work of Engine::assign() on this rank alone, with refresh() above. `fill` returns
  // false to leave the segment as it is.
  static void assign(Engine& engine,
                     const std::function<bool(const Segment&, std::span<float>)>& fill);
  // Does the work of Optimizer::set_steps() on this rank alone.
  static void set_steps(Optimizer& optimizer, std::int64_t steps);
  static Moments moments(const Optimizer& optimizer, const Unit& unit, std::size_t bucket);
  static bool is_optimizer_of(const Engine& engine, const Optimizer& optimizer) noexcept;
};

inline UnitState& state_of(const Unit& unit) noexcept { return EngineAccess::state(unit); }

}  // namespace atoll_v1::atoll::fsdp

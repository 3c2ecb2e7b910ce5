// The inside of the engine: what stands behind Unit, Pass and Engine.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "fsdp/plan.hpp"
#include "fsdp/strategy.hpp"

namespace atoll_v1::atoll::fsdp {

// Parameters of a unit that travel together: of one dtype, all trainable or all frozen.
struct UnitBucket {
  DType dtype = DType::f32;  // what compute reads
  bool trainable = true;
  BucketLayout layout;
  std::uint64_t gathered_offset = 0;  // in the unit's gathered memory, bytes
  std::uint64_t gradient_offset = 0;  // in the unit's whole gradient, elements

  View master;          // this rank's shard: f32, of a frozen bucket in `dtype`
  View low;             // the same in `dtype`, which the optimizer keeps up to date; count 0: none
  View whole;           // where parameters are resident; count 0: they are gathered into a slot
  View gradient;        // f32 shard
  View whole_gradient;  // where it is kept over micro batches; count 0: in a slot

  std::string label() const;  // "f32", "bf16", "frozen f32": unique in its unit
};

// Which masters have changed since the resident parameters were gathered.
enum class Stale {
  none,
  trainable,
  all
};

struct Unit::State {
  struct Place {
    std::size_t bucket = 0;
    BucketSlot slot;
  };

  std::string name;
  std::vector<ParamSpec> params;
  std::size_t index = 0;
  std::vector<UnitBucket> buckets;
  std::vector<Place> places;  // by parameter
  UnitSize size;

  Event updated;       // the masters are up to date
  Event left;          // compute has read the resident parameters
  LaneEvent gathered;  // the resident parameters are whole
  Stale stale = Stale::all;
  LaneEvent reduced;  // the last reduction of the gradient shard
  // Of the last step: that, and whatever an optimizer does with it at once.
  LaneEvent gradient_final;
  View kept;             // the inner shard of what forward has gathered, u8; count 0: none
  bool is_kept = false;  // in this pass

  std::size_t find(std::string_view param) const;  // index in params; Error(not_found)
};

struct Engine::Impl {
  Impl(const Mesh& mesh, Options options);

  // Buffers. One allocation per category, laid out by freeze().
  struct GatheredSlot {
    Buffer memory;
    Event free;                        // compute has left it
    std::optional<std::size_t> holds;  // a unit that has been gathered, until it is given up
    bool stale = false;                // its masters have changed since
  };
  struct GradientSlot {
    Buffer memory;
    LaneEvent free;                    // the reduction has read it
    std::optional<std::size_t> owner;  // the unit whose backward is under way
  };

  bool sharded() const noexcept { return scheduler.shard_count() > 1; }
  bool replicated() const noexcept { return scheduler.replicate_count() > 1; }
  // Gradients travel as copies in another type.
  bool casts_gradients() const noexcept { return options.precision.reduce != DType::f32; }
  void plan_memory();
  std::uint64_t plan_casts(std::uint64_t shard_elements);
  std::uint64_t plan_scratch(std::uint64_t shard_elements);
  void allocate();
  bool has_master_apart(const UnitBucket& bucket) const;
  void place_parameters();
  void place_gradients();
  void allocate_slots();
  void set_zero(const Buffer& buffer);

  // Where compute reads the bucket at this position, and writes its gradient.
  View gathered(const UnitBucket& bucket, std::size_t position) const;
  View whole_gradient(const Unit::State& unit, const UnitBucket& bucket) const;

  // For a checker: what stays where it is, what slots hold in the order of a stream, and what
  // compute does in the scope at this position.
  void tell_places();
  static void hold_parameters(Stream& stream, const GatheredSlot& slot, const Unit::State& unit);
  static void hold_gradient(Stream& stream, const GradientSlot& slot, const Unit::State& unit);
  static void hold_nothing(Stream& stream, const Buffer& slot);
  void tell_scope(const Unit::State& unit, std::size_t position) const;

  // What writes masters from outside, on `stream`, must wait for both.
  void check_idle() const;  // throws while a pass is under way
  void wait_idle_parameters(Stream& stream);
  void wait_updated(Stream& stream);
  // The unit's masters are up to date once `event` has happened.
  void update(Unit::State& unit, const Event& event, Stale stale);
  void settle() noexcept;

  // The life of a pass.
  void check_micro(const PassOptions& next) const;
  void begin(const PassOptions& pass_options, Stream& compute_stream);
  void check_going_on(const Unit& unit, std::string_view what) const;
  Error no_slot(const Unit& unit, std::size_t residence, std::string_view what) const;
  std::size_t enter(Unit& unit, std::size_t lowest, std::size_t highest, std::string_view what);
  bool finds_again(std::size_t residence) const;
  void leave(std::size_t position);
  void open_gradient(Unit::State& unit, std::size_t position);
  void check_gradient(const Unit::State& unit) const;
  void close_gradient(Unit::State& unit);
  void end() noexcept;
  std::size_t pass_length() const noexcept;

  // On the lanes.
  void gather_resident();
  bool is_there(std::size_t residence) const;
  bool may_gather(std::size_t residence) const;
  void give_up(Stream& stream, GatheredSlot& slot);
  void gather_ahead(std::size_t residence);
  void gather(std::size_t residence);
  void keep_inner_shard(Unit::State& unit, std::size_t slot);
  void gather_bucket(const Unit::State& unit, const UnitBucket& bucket, View whole,
                     const Event& after);
  void reduce(Unit::State& unit, const Event& written);
  LaneEvent reduce_shards(Unit::State& unit, const Event& written);
  void reduce_shard(const Unit::State& unit, View whole, View target, const Event& written);
  void reduce_across(const Unit::State& unit, View gradient, const Event& reduced);

  Options options;
  World& world;
  Sharding sharding;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Unit>> units;
  std::map<std::string, std::size_t, std::less<>> by_name;
  bool frozen = false;
  PassPlan plan;
  MemoryPlan memory;
  Traffic traffic;

  Buffer masters, residents, kept, gradients, kept_gradients, staging;
  // What a lane sends of a gradient, where that is a cast copy: whole, its shard, and across
  // replicas.
  Buffer cast_whole, cast_shard, cast_outer;
  std::array<std::uint64_t, 3> cast_bytes{};     // of these
  std::array<std::uint64_t, 2> scratch_bytes{};  // of the lanes reduce and outer, kept by them
  std::uint64_t staging_bytes = 0;               // of `staging`
  std::vector<GatheredSlot> gathered_slots;
  std::vector<GradientSlot> gradient_slots;
  Event passed;  // compute of the last pass, which may read masters and resident parameters
  // Called when the last micro batch's gradient of a unit is complete, in the order of `stream`;
  // what it enqueues there comes before anybody else sees the gradient.
  std::function<void(Unit::State& unit, Stream& stream)> on_gradient;

  // The pass under way.
  bool active = false;
  bool given_up = false;  // by an exception
  PassOptions pass;
  int next_micro = 0;            // what goes on with the step that has begun; 0: none has
  int step_micros = 1;           // of that step
  bool gradients_whole = false;  // all micro batches of the last step have come
  Stream* compute = nullptr;
  std::size_t position = 0;           // of the next use
  std::size_t next_gather = 0;        // the first residence that has not been started
  std::size_t wanted_gather = 0;      // the last residence that should be started
  std::vector<bool> left;             // by residence: compute has left it
  std::vector<int> open_scopes;       // by residence
  std::vector<int> open_gradients;    // by unit: scopes of its backward
  std::vector<LaneEvent> gathers;     // by residence
  std::vector<Stamp> entered;         // by position, when work is recorded
  std::vector<std::uint64_t> ranges;  // by position, of open scopes
};

}  // namespace atoll_v1::atoll::fsdp

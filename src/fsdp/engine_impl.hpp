// The inside of the engine: what stands behind Unit, Pass and Engine.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "fsdp/plan.hpp"

namespace atoll_v1::atoll::fsdp {

struct Unit::State {
  std::string name;
  std::vector<ParamSpec> params;
  std::size_t index = 0;
  BucketLayout layout;

  View master;           // f32 shard
  View low;              // resident copy in the compute dtype; count 0: none
  View gradient;         // f32 shard; the whole gradient where nothing is sharded
  Event gradient_final;  // of the last step: the shard is complete

  std::size_t find(std::string_view param) const;  // index in params; Error(not_found)
};

struct Engine::Impl {
  Impl(const Mesh& mesh, Options options);

  // Buffers. One allocation per category, laid out by freeze().
  struct GatheredSlot {
    Buffer memory;
    Event free;  // compute has left it
  };
  struct GradientSlot {
    Buffer memory;
    Event free;                        // the reduction has read it
    std::optional<std::size_t> owner;  // the unit whose backward is under way
  };

  bool sharded() const noexcept { return scheduler.shard_count() > 1; }
  bool low_precision() const noexcept { return options.precision.param != DType::f32; }
  void allocate();
  void allocate_shards();
  void allocate_slots();

  // Where compute reads the unit at this position.
  View gathered(const Unit::State& unit, std::size_t position) const;
  View whole_gradient(const Unit::State& unit) const;

  // What writes masters from outside, on `stream`, must wait for both.
  void wait_idle_parameters(Stream& stream);
  void settle() noexcept;

  // The life of a pass.
  void begin(const PassOptions& pass_options, Stream& compute_stream);
  std::size_t enter(Unit& unit, std::size_t lowest, std::size_t highest, std::string_view what);
  void gather_ahead(std::size_t residence);
  void gather(std::size_t residence);
  void leave(std::size_t position);
  void open_gradient(Unit::State& unit, std::size_t position);
  void check_gradient(const Unit::State& unit) const;
  void close_gradient(Unit::State& unit);
  void reduce(Unit::State& unit, const Event& written);
  void end() noexcept;
  std::size_t pass_length() const noexcept;

  Options options;
  World& world;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Unit>> units;
  std::map<std::string, std::size_t, std::less<>> by_name;
  bool frozen = false;
  PassPlan plan;
  MemoryPlan memory;
  Traffic traffic;

  Buffer masters, lows, gradients, staging;
  std::vector<GatheredSlot> gathered_slots;
  std::vector<GradientSlot> gradient_slots;
  Event parameters_ready;  // the optimizer has written the masters
  Event passed;            // compute of the last pass, which may read them

  // The pass under way.
  bool active = false;
  PassOptions pass;
  Stream* compute = nullptr;
  std::size_t position = 0;         // of the next use
  std::size_t next_gather = 0;      // the first residence that has not been started
  std::size_t wanted_gather = 0;    // the last residence that should be started
  std::vector<bool> left;           // by residence: compute has left it
  std::vector<int> open_scopes;     // by residence
  std::vector<int> open_gradients;  // by unit: scopes of its backward
  std::vector<Work> gathers;        // by residence
};

}  // namespace atoll_v1::atoll::fsdp

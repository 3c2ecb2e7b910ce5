// The parts of an engine share this state: options, mesh axes, lanes, units and the plan of a pass.
#pragma once

#include <memory>
#include <vector>

#include "fsdp/strategy.hpp"
#include "fsdp/unit.hpp"

namespace atoll_v1::atoll::fsdp {

// Written by the constructor of Engine, by add_unit() and by freeze(), and only read afterwards,
// except that every part enqueues work on the scheduler.
struct EngineSetup {
  EngineSetup(const Mesh& mesh, Options options);

  bool sharded() const noexcept { return scheduler.shard_count() > 1; }
  bool replicated() const noexcept { return scheduler.replicate_count() > 1; }
  // Whether gradients are cast to another type before they are sent.
  bool casts_gradients() const noexcept { return options.precision.reduce != DType::f32; }
  UnitState& state(std::size_t unit) const noexcept { return state_of(*units[unit]); }
  DeviceOps& ops() const noexcept { return options.device.ops(); }
  // Fills the buffer with zeros; blocks.
  void set_zero(const Buffer& buffer);

  Options options;  // its device is the scheduler's, which may be a checker around the caller's
  World& world;
  Sharding sharding;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Unit>> units;
  bool frozen = false;
  PassPlan plan;
};

// Blocks until a stream, an event or all lanes have completed. Failures are ignored, since callers
// that waited for the failed work have received them.
template <class Work>
void settle(Work& work) noexcept {
  try {
    work.synchronize();
  } catch (...) {
    return;
  }
}

}  // namespace atoll_v1::atoll::fsdp

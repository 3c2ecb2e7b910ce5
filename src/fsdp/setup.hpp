// The state that the parts of an engine share: options, mesh axes, lanes, units and the plan of a
// pass.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "atoll/optimizer.hpp"
#include "core/socket.hpp"
#include "fsdp/one_thread.hpp"
#include "fsdp/strategy.hpp"
#include "fsdp/unit.hpp"
#include "world/process_failure.hpp"
#include "world/rank_set.hpp"

namespace atoll_v1::atoll::fsdp {


// Reads parameters and moments while training goes on: a save in progress (checkpoint/live_save.hpp).
class LiveReader {
 public:
  virtual ~LiveReader() = default;
  // Called before work that changes the unit is enqueued on `stream`.
  virtual void before_update(std::size_t unit, Stream& stream) = 0;
  // Blocks until nothing more is read. Throws the error of the reader.
  virtual void wait() = 0;
};

// Memory with one element for each element of this rank's gradient shards, divided by unit and
// bucket. The part of a frozen bucket is empty.
using BucketParts = std::vector<std::vector<View>>;

// A state that Engine::add_state() has added.
struct OwnState {
  Buffer memory;
  BucketParts parts{};  // f32; none if the state is not elementwise
  // For a state that is not elementwise: the number of its elements and, on ranks with a segment of
  // the parameter, the elements, by unit and parameter. Otherwise empty.
  std::vector<std::vector<std::uint64_t>> counts{};
  std::vector<std::vector<View>> wholes{};
};

// The constructor of Engine, add_unit(), seal(), add_state(), the constructor of Optimizer and
// use_groups() write this state. Afterwards the parts only read it, except `has_values`,
// `unfilled` and `calling`, and enqueue work on the scheduler.
struct EngineSetup {
  EngineSetup(const Mesh& mesh, Options options);

  bool sharded() const noexcept { return scheduler.shard_count() > 1; }
  bool replicated() const noexcept { return scheduler.replicate_count() > 1; }
  // Returns true if gradients are cast to another type before they are sent.
  bool casts_gradients() const noexcept { return options.precision.reduce != DType::f32; }
  // Looks at the address only, because the engine of `unit` may have been destroyed.
  bool has_unit(const Unit& unit) const noexcept {
    return std::ranges::any_of(units, [&](const auto& own) { return own.get() == &unit; });
  }
  UnitState& state(std::size_t unit) const noexcept { return state_of(*units[unit]); }
  World& world() const { return ranks.world(); }  // throws if it has been destroyed
  DeviceOps& ops() const noexcept { return options.device.ops(); }
  // Throws Error(invalid_argument) that names `call`, unless Engine::seal() has been called.
  void check_sealed(std::string_view call) const;
  void begin_fill(const Segment& segment);  // sets `unfilled`
  // Throws Error(invalid_argument) that names `call`, while parameters have no values.
  void check_values(std::string_view call) const;
  // Throws Error(invalid_argument) that names `call`, while a PendingSave exists.
  void check_no_live_save(std::string_view call) const;
  // Call before parameters or states are changed by anything but a step of the Optimizer. Blocks
  // until a save that runs beside training has read them.
  void end_live_save();
  // Ends the state in which a PendingSave exists. Stops the thread if it is still writing.
  void end_saving();
  // Fills the buffer with zeros. Blocks.
  void set_zero(const Buffer& buffer);

  // options.device is the scheduler's device, which may be a checker around the caller's device
  Options options;
  RankSet ranks;  // the ranks of the engine
  Sharding sharding;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Unit>> units;
  bool sealed = false;
  bool has_values = false;  // true when parameters have been initialized, assigned or loaded
  // The parameter that assign(), import_weights() or load() is filling or failed to fill.
  std::string unfilled;
  EngineCalls calling{ranks.link()};
  PassPlan plan;
  std::map<std::string, OwnState, std::less<>> states;  // by name
  // Settings of the optimizer for each parameter, in the order of units and their parameters. Empty
  // if the optimizer has not declared them.
  std::vector<ParamSettings> settings;
  // The save that runs beside training; null without one, and on ranks that write no file.
  std::shared_ptr<LiveReader> live_save;
  bool is_saving = false;  // a PendingSave exists
  // The folder of the last checkpoint, locked against other engines (SaveFolder). Lowest rank only.
  net::Fd saved_folder;
};

// Number of elements of this rank's gradient shards.
std::uint64_t gradient_elements(const EngineSetup& setup);
// Cuts memory of gradient_elements() elements of type `dtype`.
BucketParts cut_by_bucket(const EngineSetup& setup, const Buffer& memory, DType dtype);

// Blocks until a stream, an event or all lanes have completed. Ignores failures: callers that
// waited for the failed work have received them, and an error that no caller has received stays
// unobserved.
template <class Work>
void settle(Work& work) noexcept {
  const IgnoringErrors ignoring;
  try {
    work.synchronize();
  } catch (...) {
    return;
  }
}

}  // namespace atoll_v1::atoll::fsdp

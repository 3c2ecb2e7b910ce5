// Unshards parameters: starts all-gathers ahead of compute, on the lane (communication stream)
// `gather`.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "fsdp/storage.hpp"

namespace atoll_v1::atoll::fsdp {

// Which unsharded copies of a unit's parameters are stale, that is, older than the master
// parameters.
enum class Stale {
  none,
  trainable,  // trainable parameters are stale, as after a step
  all
};

// Decides when each unit is gathered, from which memory, and into which slot (a buffer that units
// use in turn). Events order the all-gathers with compute and with updates of the master
// parameters:
//  - a gather waits until compute has ended the previous use of the slot, and for the last update
//    of the unit's master parameters;
//  - compute waits for the gather.
// A unit that is still unsharded in its slot is not gathered again.
class Gathering {
 public:
  Gathering(EngineSetup& setup, const Storage& storage) : setup_(setup), storage_(storage) {}
  void add_unit() { units_.emplace_back(); }
  void seal();  // must be called once, after Storage::allocate()

  // Declares that the master parameters of a unit are up to date once `event` has happened, and
  // that the unsharded copies selected by `stale` are older.
  void masters_updated(std::size_t unit, const Event& event, Stale stale);
  // Makes `stream` wait until the master parameters of all units are up to date.
  void wait_updated(Stream& stream) const;
  // Declares that an optimizer steps on `stream`. After the step, the caller may enqueue work there
  // that writes states of Engine::add_state().
  void add_writer(Stream& stream);
  // Makes `stream` wait for the work that is enqueued on the streams of add_writer().
  void wait_written(Stream& stream) const;
  void synchronize_updates() const noexcept;

  // Starts the first gathers of a pass. If units stay unsharded between passes, gathers all units
  // with stale parameters; otherwise gathers the first Options::prefetch units.
  void begin_pass(const PassOptions& pass);
  // Makes `compute` wait until the unit at this position is unsharded, and starts the gathers of
  // the next Options::prefetch units. Throws Error(invalid_argument), which names `scope`, when
  // open scopes occupy all slots.
  void unshard(Stream& compute, std::size_t position, std::string_view scope);
  // Call this when the last scope of a unit has ended; `position` is the position of this scope.
  // Gathers may overwrite the slot once `compute` has reached this point.
  void reshard(Stream& compute, std::size_t position);
  // Ends an incomplete pass. Returns an event on `compute` after which no slot is in use.
  Event cancel(Stream& compute);
  const Engine::Traffic& traffic() const noexcept { return traffic_; }

 private:
  struct Slot {
    Event free;                          // event that happens when compute no longer uses the slot
    std::optional<std::size_t> content;  // unit that is unsharded in this slot
    bool stale = false;                  // true if the master parameters changed after the gather
  };
  struct UnitParameters {
    Event updated;             // event that happens when the unit's masters are up to date
    Event read;                // event that happens when compute no longer reads the unit
    LaneEvent gathered;        // event that happens when resident parameters are unsharded
    Stale stale = Stale::all;  // which resident parameters are stale
    bool has_secondary_shard =
        false;  // true when forward has saved the secondary shard for backward
  };

  bool is_training() const noexcept { return pass_.kind == PassOptions::Kind::train; }
  // Labels gathers with the kind of the pass, so that the backend detects ranks whose passes have
  // different kinds.
  std::string_view label_of_pass() const noexcept { return is_training() ? "train" : "eval"; }
  bool is_in_slot(const Unshard& unshard) const;
  bool is_used_again(std::size_t index) const;
  bool may_gather(std::size_t index) const;
  Error no_slot(std::size_t index, std::string_view scope) const;
  void gather_resident();
  void gather_ahead(std::size_t index);
  void gather(std::size_t index);
  void gather_bucket(const UnitState& unit, const UnitBucket& bucket, View unsharded,
                     const Event& after);
  void gather_blocks(const UnitState& unit, const UnitBucket& bucket, View unsharded);
  void save_secondary_shard(std::size_t unit, std::size_t slot);
  void empty(Stream& stream, std::size_t slot);

  EngineSetup& setup_;
  Scheduler& scheduler_ = setup_.scheduler;
  const Sharding& sharding_ = setup_.sharding;
  const PassPlan& plan_ = setup_.plan;
  const Storage& storage_;
  std::vector<UnitParameters> units_;
  std::vector<Slot> slots_;
  std::vector<StreamLink> writers_;
  Engine::Traffic traffic_;

  // The members below describe the pass in progress. Indices refer to PassPlan::unshards.
  PassOptions pass_;
  std::size_t next_ = 0;         // index of the first gather that has not been started
  std::size_t wanted_ = 0;       // index of the last gather to start once its slot is free
  std::vector<bool> resharded_;  // for each unshard, true when compute has ended its use
  // For each unshard, the event at the end of its gather; empty when no gather was needed.
  std::vector<LaneEvent> gathered_;
};

}  // namespace atoll_v1::atoll::fsdp

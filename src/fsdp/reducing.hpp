// Reduces gradients: compute writes unsharded gradients, and the lanes (communication streams)
// `reduce` and `replicate` sum them over ranks into sharded gradients.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "fsdp/storage.hpp"

namespace atoll_v1::atoll::fsdp {

// Gradients are summed over ranks; with GradientScale::average, the final shards are then divided
// by the number of ranks. Events order the work:
//  - compute writes into a gradient slot (a buffer that units use in turn) after the reduction of
//    the slot's last gradient has read it;
//  - a reduction over the shard axis waits until compute has written the whole gradient;
//  - a reduction across replicas waits for the reduction over the shard axis.
// There are no other waits, so each lane (communication stream) runs as early as possible.
class Reducing {
 public:
  // A function that is called for each unit when its gradient of the step is final. Compute reads
  // the gradient only after the work that the function enqueues on `stream`.
  using OnFinal = std::function<void(const UnitState& unit, Stream& stream)>;

  Reducing(EngineSetup& setup, const Storage& storage) : setup_(setup), storage_(storage) {}
  void add_unit() { units_.emplace_back(); }
  void seal();  // must be called once, after Storage::allocate()
  void set_on_final(OnFinal on_final) { on_final_ = std::move(on_final); }
  bool has_on_final() const noexcept { return static_cast<bool>(on_final_); }

  void begin_pass(const PassOptions& pass);
  // Throws Error(invalid_argument) when a unit with open scopes occupies the gradient slot that a
  // backward scope of `unit` at `position` needs.
  void check_slot(const UnitState& unit, std::size_t position) const;
  // Begins a backward scope: makes `compute` wait until it may write the gradient of the unit.
  void open(Stream& compute, const UnitState& unit, std::size_t position);
  // Ends a backward scope; `next` is the position after the last scope that was entered. After the
  // unit's last use in backward, returns an event for reduce(): compute has written the gradient.
  std::optional<Event> close(Stream& compute, const UnitState& unit, std::size_t next);
  void reduce(const UnitState& unit, const Event& written);
  WriteMode write_mode(const UnitState& unit, std::size_t position) const noexcept;
  // Ends an incomplete pass without reducing the gradients of open scopes.
  void cancel(Stream& compute) const;
  // Makes `compute` wait until all gradients are final.
  void wait(Stream& compute) const;
  const Engine::Traffic& traffic() const noexcept { return traffic_; }

 private:
  struct Slot {
    LaneEvent free;                    // event that happens when the reduction has read the slot
    std::optional<std::size_t> owner;  // unit with open scopes that uses the slot
  };
  struct UnitGradient {
    LaneEvent reduced;  // event at the end of the last reduction of the sharded gradient
    LaneEvent final;    // event at the end of the reduction and of the later on_final work
    int scopes = 0;     // number of open backward scopes
  };

  bool is_last() const noexcept { return pass_.micro + 1 == pass_.of; }
  bool averages() const noexcept;
  LaneEvent reduce_shards(const UnitState& unit, const Event& written);
  void reduce_shard(const UnitState& unit, View unsharded, View target, const Event& written);
  void reduce_replicas(const UnitState& unit, View gradient, const Event& reduced);
  LaneEvent average(const UnitState& unit, Lane lane);

  EngineSetup& setup_;
  Scheduler& scheduler_ = setup_.scheduler;
  const Sharding& sharding_ = setup_.sharding;
  const PassPlan& plan_ = setup_.plan;
  const Storage& storage_;
  std::vector<UnitGradient> units_;
  std::vector<Slot> slots_;
  PassOptions pass_;
  OnFinal on_final_;
  Engine::Traffic traffic_;
};

}  // namespace atoll_v1::atoll::fsdp

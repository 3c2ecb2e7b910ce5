// Gradients of a pass: compute writes them unsharded, and the lanes `reduce` and `outer` sum them
// over ranks into the sharded gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "fsdp/storage.hpp"

namespace atoll_v1::atoll::fsdp {

// Reduces gradients: sums over ranks, no averages. Event edges order the work:
//  - compute writes into a gradient slot after the reduction of the slot's last gradient has read
//    it;
//  - a reduction over the shard axis waits until compute has written the whole gradient;
//  - a reduction across replicas waits for the one over the shard axis.
// Nothing else is ordered, so each lane runs as early as it can.
class Reducing {
 public:
  // Called when the gradient of a step is final. Work that it enqueues on `stream` runs before
  // wait() lets compute read the gradient.
  using OnFinal = std::function<void(const UnitState& unit, Stream& stream)>;

  Reducing(EngineSetup& setup, const Storage& storage) : setup_(setup), storage_(storage) {}
  void add_unit() { units_.emplace_back(); }
  void freeze();  // must be called once, after Storage::allocate()
  void set_on_final(OnFinal on_final) { on_final_ = std::move(on_final); }
  bool has_on_final() const noexcept { return static_cast<bool>(on_final_); }

  void begin_pass(const PassOptions& pass);
  // Error(invalid_argument) when open units occupy the gradient slot that a backward scope of
  // `unit` at `position` needs.
  void check_slot(const UnitState& unit, std::size_t position) const;
  // Makes `compute` wait until it may write the gradient of the unit.
  void open(Stream& compute, const UnitState& unit, std::size_t position);
  // Ends one open(); `next` is the position after the last scope that was entered. Starts the
  // reduction after the unit's last use in backward.
  void close(Stream& compute, const UnitState& unit, std::size_t next);
  WriteMode write_mode(const UnitState& unit, std::size_t position) const noexcept;
  // Ends a pass that is not complete: open gradients will not be reduced.
  void cancel(Stream& compute) const;
  // `compute` waits until all gradients are final.
  void wait(Stream& compute) const;
  const Engine::Traffic& traffic() const noexcept { return traffic_; }

 private:
  struct Slot {
    LaneEvent free;                    // the last reduction has read the slot
    std::optional<std::size_t> owner;  // unit that compute is writing the gradient of
  };
  struct UnitGradient {
    LaneEvent reduced;  // the last reduction of the sharded gradient
    LaneEvent final;    // `reduced`, and the work that on_final has enqueued after it
    int scopes = 0;     // number of open backward scopes
  };

  bool is_last() const noexcept { return pass_.micro + 1 == pass_.of; }
  void reduce(const UnitState& unit, const Event& written);
  LaneEvent reduce_shards(const UnitState& unit, const Event& written);
  void reduce_shard(const UnitState& unit, View unsharded, View target, const Event& written);
  void reduce_across(const UnitState& unit, View gradient, const Event& reduced);

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

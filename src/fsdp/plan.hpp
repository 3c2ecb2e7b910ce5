// Plans which buffer each unit uses at each point of a pass. The plan depends only on the declared
// order and is made once, before training starts.
//
// A *position* is one use of a unit in a pass: first the forward uses in declared order, then the
// backward uses in reverse. An *unshard* is the time in which a unit stays unsharded, from gather
// to reshard: a run of consecutive positions of one unit. The last unit of forward is the first
// unit of backward, so these two uses belong to one unshard. A *slot* is a buffer that several
// units, or several unsharded gradients, use in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace atoll_v1::atoll::fsdp {

struct Unshard {
  std::size_t unit = 0;
  std::size_t first = 0, last = 0;  // first and last position at which the unit is used
  std::size_t slot = 0;
  // True when the unit stays unsharded in its slot from forward to backward (FSDP2:
  // reshard_after_forward=False).
  bool stays_unsharded = false;
};

// The time during which a unit's unsharded gradient occupies a slot (a buffer that units use in
// turn).
struct GradientUse {
  std::size_t first = 0, last = 0;  // first and last position in backward at which the unit is used
  std::size_t slot = 0;
};

struct UnitSize {
  std::uint64_t gathered = 0;  // bytes of the unsharded parameters as compute reads them
  std::uint64_t gradient = 0;  // bytes of the unsharded gradient; 0 if all parameters are frozen
};

struct PassPlan {
  std::vector<std::size_t> sequence;          // index of the unit at each position in the pass
  std::size_t forward_length = 0;             // number of positions in forward
  std::vector<Unshard> unshards;              // unshards in ascending order of positions
  std::vector<std::size_t> unshard_of;        // index in `unshards` for each position in the pass
  std::vector<std::uint64_t> gathered_slots;  // bytes of each slot for unsharded parameters
  std::vector<GradientUse> gradients;         // use of a gradient slot by each unit
  std::vector<std::uint64_t> gradient_slots;  // bytes of each slot for unsharded gradients

  // Returns the index of the unshard in backward that corresponds to an unshard in forward, or the
  // reverse.
  std::size_t mirror_of(std::size_t unshard) const noexcept {
    return unshards.size() - 1 - unshard;
  }
};

struct PlanOptions {
  std::size_t prefetch = 1;
  std::size_t reduce_buffers = 2;
};

// Plans a pass. Every unit must occur in `order`. `sizes` has one entry per unit, including
// padding.
//
// Parameters use prefetch + 1 slots. Forward uses the slots in turn, and backward uses the same
// slot for a unit as forward. So backward finds the last prefetch + 1 units of forward still
// unsharded in their slots, and the next forward finds the last units of backward in theirs.
//
// Gradients use `reduce_buffers` slots in turn, so that one gradient is reduced while the next is
// written. A unit that backward uses again after other units, such as a tied embedding, occupies an
// additional slot until its last use.
PassPlan plan_pass(std::span<const std::size_t> order, std::span<const UnitSize> sizes,
                   PlanOptions options);

}  // namespace atoll_v1::atoll::fsdp

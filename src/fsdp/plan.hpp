// Plans which buffer each unit uses at each point of a pass, from the declared order alone, before
// training starts. A pure function.
//
// A *position* is one use of a unit in a pass: first the forward uses in declared order, then the
// backward uses in reverse. An *unshard* is the time in which a unit stays unsharded, from its
// gather to its reshard: a run of consecutive positions of one unit. The last unit of forward is
// the first of backward, so the two uses are one unshard. A *slot* is a buffer that several units,
// or several unsharded gradients, use in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace atoll_v1::atoll::fsdp {

struct Unshard {
  std::size_t unit = 0;
  std::size_t first = 0, last = 0;  // positions
  std::size_t slot = 0;
  // Forward leaves the unit unsharded in its slot for backward (FSDP2:
  // reshard_after_forward=False).
  bool stays_unsharded = false;
};

// The time in which a unit's unsharded gradient exists.
struct GradientUse {
  std::size_t first = 0, last = 0;  // positions in backward
  std::size_t slot = 0;
};

struct UnitSize {
  std::uint64_t gathered = 0;  // bytes of the unsharded parameters as compute reads them
  std::uint64_t gradient = 0;  // bytes of the unsharded gradient; 0: all parameters are frozen
};

struct PassPlan {
  std::vector<std::size_t> sequence;          // index of the unit at each position
  std::size_t forward_length = 0;             // number of forward positions
  std::vector<Unshard> unshards;              // in ascending order of positions
  std::vector<std::size_t> unshard_of;        // index in unshards, by position
  std::vector<std::uint64_t> gathered_slots;  // bytes of each slot for unsharded parameters
  std::vector<GradientUse> gradients;         // one per unit
  std::vector<std::uint64_t> gradient_slots;  // bytes of each slot for unsharded gradients

  // Maps an unshard of forward to that of the same unit in backward, and the other way round.
  std::size_t mirror_of(std::size_t unshard) const noexcept {
    return unshards.size() - 1 - unshard;
  }
};

struct PlanOptions {
  std::size_t prefetch = 1;
  std::size_t reduce_buffers = 2;
};

// Every unit must occur in `order`. `sizes` is by unit and includes padding.
//
// Parameters use prefetch + 1 slots. Forward uses them in turn, and backward uses for each unit
// the slot that forward used. So backward finds the last prefetch + 1 units of forward in their
// slots, and the next forward finds the last units of backward there.
//
// Gradients use `reduce_buffers` slots in turn, so that one is reduced while the next is written.
// A unit that backward uses again after other units, such as a tied embedding, has an additional
// slot until its last use.
PassPlan plan_pass(std::span<const std::size_t> order, std::span<const UnitSize> sizes,
                   PlanOptions options);

}  // namespace atoll_v1::atoll::fsdp

// Which buffer every unit uses at every point of a pass: fixed before training, from the declared
// order alone. Pure.
//
// Vocabulary. A *position* is one use of a unit: the forward uses in declared order, then the
// backward uses in reverse. A *residence* is a run of neighbouring positions of one unit, during
// which it stays gathered (the last unit stays over the turn from forward to backward). A *slot* is
// a buffer that unshards, or whole gradients, share in turn.
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
  bool stays_unsharded = false;  // of forward: backward finds it in its slot
};

// A unit's whole gradient, from its first use in backward to its last.
struct GradientUse {
  std::size_t first = 0, last = 0;  // positions
  std::size_t slot = 0;
};

struct UnitSize {
  std::uint64_t gathered = 0;  // bytes of the parameters as compute reads them
  std::uint64_t gradient = 0;  // bytes of the whole gradient; 0: the unit is frozen
};

struct PassPlan {
  std::vector<std::size_t> sequence;          // unit by position
  std::size_t forward_length = 0;             // positions of the forward part
  std::vector<Unshard> unshards;              // in order of first
  std::vector<std::size_t> unshard_of;        // by position
  std::vector<std::uint64_t> gathered_slots;  // bytes of each slot
  std::vector<GradientUse> gradients;         // by unit
  std::vector<std::uint64_t> gradient_slots;  // bytes of each slot

  // The residence of the same unit on the other side of the turn.
  std::size_t mirror_of(std::size_t unshard) const noexcept {
    return unshards.size() - 1 - unshard;
  }
};

struct PlanOptions {
  std::size_t prefetch = 1;
  std::size_t reduce_buffers = 2;
};

// `sizes` by unit, padding included; every unit occurs in `order`. With `prefetch` units gathered
// ahead, prefetch + 1 slots are enough: they rotate in forward, and backward has each unit where
// forward had it. So whatever is in the slots at the turn backward finds there, and what is there
// at the end the next forward. Gradients rotate over `reduce_buffers` slots, so that one is reduced
// while the next is written; a unit that is used again after others in backward has a slot of its
// own beside them until then.
PassPlan plan_pass(std::span<const std::size_t> order, std::span<const UnitSize> sizes,
                   PlanOptions options);

}  // namespace atoll_v1::atoll::fsdp

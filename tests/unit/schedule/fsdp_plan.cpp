#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/schedule.hpp"
#include "fsdp/plan.hpp"

using atoll::fsdp::PassPlan;
using atoll::fsdp::plan_pass;

TEST_CASE("a bucket aligns tensors and divides evenly into shards of whole blocks") {
  const std::vector<std::uint64_t> counts{10, 64, 5000, 1, 0};
  const auto one = atoll::plan_bucket(counts, 1);
  for (const std::uint64_t shards : {1u, 2u, 3u, 4u, 7u}) {
    const auto layout = atoll::plan_bucket(counts, shards);
    CHECK(layout.elements % (shards * atoll::bucket_granularity) == 0);
    CHECK(layout.shard_elements() * shards == layout.elements);
    std::vector<int> covered(layout.elements, 0);  // tensors and gaps tile the bucket
    const auto mark = [&](const atoll::BucketSlot& slot) {
      for (std::uint64_t i = 0; i < slot.count; ++i) ++covered[slot.offset + i];
    };
    for (std::size_t i = 0; i < counts.size(); ++i) {
      CHECK(layout.slots[i].offset % atoll::bucket_alignment == 0);
      CHECK(layout.slots[i].offset == one.slots[i].offset);  // whatever the number of shards
      CHECK(layout.slots[i].count == counts[i]);
      mark(layout.slots[i]);
    }
    for (const auto& gap : layout.gaps()) mark(gap);
    CHECK(std::ranges::all_of(covered, [](int n) { return n == 1; }));
  }
  CHECK_THROWS_AS(atoll::plan_bucket(counts, 0), atoll::Error);
}

namespace {

using atoll::fsdp::UnitSize;

// Checks that two unshards that overlap in time, including their prefetch, have the same slot only
// if they belong to the same unit.
void check_slots(const PassPlan& plan, std::size_t prefetch) {
  for (std::size_t k = 0; k < plan.unshards.size(); ++k) {
    for (std::size_t ahead = 1; ahead <= prefetch && k + ahead < plan.unshards.size(); ++ahead) {
      const auto &one = plan.unshards[k], &other = plan.unshards[k + ahead];
      CHECK((one.slot == other.slot) == (one.unit == other.unit));
    }
  }
}

}  // namespace

TEST_CASE("backward finds in the slots what forward left there") {
  for (std::size_t prefetch = 0; prefetch < 6; ++prefetch) {
    for (std::size_t units = 1; units < 8; ++units) {
      CAPTURE(prefetch);
      CAPTURE(units);
      std::vector<std::size_t> order(units);
      std::iota(order.begin(), order.end(), 0u);
      const std::vector<UnitSize> sizes(units, {64, 64});
      const PassPlan plan = plan_pass(order, sizes, {.prefetch = prefetch});
      check_slots(plan, std::min(prefetch, units - 1));
      // The unit that each slot holds; the value `units` means an empty slot.
      std::vector<std::size_t> holds(prefetch + 1, units);
      std::size_t found = 0;
      for (std::size_t k = 0; k < plan.unshards.size(); ++k) {
        const auto& [unit, first, last, slot, stays] = plan.unshards[k];
        const bool again = holds[slot] == unit;
        if (k >= units) CHECK(again == plan.unshards[plan.mirror_of(k)].stays_unsharded);
        if (k < units) CHECK(!again);
        found += again;
        holds[slot] = unit;
      }
      CHECK(found == std::min(prefetch, units - 1));
      // The next forward pass finds its first units still in their slots.
      for (std::size_t unit = 0; unit < std::min(prefetch + 1, units); ++unit) {
        CHECK(holds[plan.unshards[unit].slot] == unit);
      }
    }
  }
}

TEST_CASE("a unit used at both ends keeps its gradient from first to last use") {
  // Unit 0 is a tied embedding, which is used first and last.
  const std::vector<std::size_t> order{0, 1, 2, 0};
  const PassPlan plan = plan_pass(order, std::vector<UnitSize>{{50, 50}, {10, 10}, {10, 10}}, {});
  CHECK(plan.gradients[0].first == 4);
  CHECK(plan.gradients[0].last == 7);
  // The tied unit has an additional slot; the others alternate between two.
  CHECK(plan.gradient_slots.size() == 3);
  CHECK(plan.gradients[0].slot != plan.gradients[1].slot);
  CHECK(plan.gradients[0].slot != plan.gradients[2].slot);
  CHECK(plan.gradients[1].slot != plan.gradients[2].slot);
}

TEST_CASE("gradients rotate over Options::reduce_buffers slots; frozen units have no slot") {
  const std::vector<std::size_t> order{0, 1, 2, 3};
  const std::vector<UnitSize> sizes{{8, 80}, {8, 0}, {8, 40}, {8, 20}};
  const PassPlan three = plan_pass(order, sizes, {.reduce_buffers = 3});
  CHECK(three.gradient_slots == std::vector<std::uint64_t>{20, 40, 80});
  const PassPlan one = plan_pass(order, sizes, {.reduce_buffers = 1});
  CHECK(one.gradient_slots == std::vector<std::uint64_t>{80});
}

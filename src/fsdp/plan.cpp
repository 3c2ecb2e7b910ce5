#include "fsdp/plan.hpp"

#include <algorithm>
#include <optional>

namespace atoll_v1::atoll::fsdp {
namespace {

void plan_unshards(PassPlan& plan, std::span<const UnitSize> sizes, std::size_t prefetch) {
  const std::size_t slots = prefetch + 1;
  for (std::size_t position = 0; position < plan.sequence.size(); ++position) {
    const std::size_t unit = plan.sequence[position];
    if (plan.unshards.empty() || plan.unshards.back().unit != unit) {
      plan.unshards.push_back({.unit = unit, .first = position});
    }
    plan.unshards.back().last = position;
    plan.unshard_of.push_back(plan.unshards.size() - 1);
  }
  plan.gathered_slots.assign(slots, 0);
  if (plan.unshards.empty()) return;
  const std::size_t turn = plan.unshards.size() / 2;
  for (std::size_t index = 0; index <= turn; ++index) {
    Unshard& unshard = plan.unshards[index];
    unshard.slot = plan.unshards[plan.mirror_of(index)].slot = index % slots;
    unshard.stays_unsharded = index < turn && index + slots > turn;
    std::uint64_t& bytes = plan.gathered_slots[unshard.slot];
    bytes = std::max(bytes, sizes[unshard.unit].gathered);
  }
}

void plan_gradients(PassPlan& plan, std::span<const UnitSize> sizes, std::size_t buffers) {
  plan.gradients.resize(sizes.size());
  std::vector<bool> seen(sizes.size(), false);
  for (std::size_t position = plan.forward_length; position < plan.sequence.size(); ++position) {
    GradientUse& use = plan.gradients[plan.sequence[position]];
    if (!seen[plan.sequence[position]]) use.first = position;
    seen[plan.sequence[position]] = true;
    use.last = position;
  }
  // Slots with an index of `buffers` or more are for units that backward uses again after other
  // units.
  std::vector<std::optional<std::size_t>> busy_until(buffers);
  plan.gradient_slots.assign(buffers, 0);
  const auto rotation = static_cast<std::ptrdiff_t>(buffers);
  for (std::size_t position = plan.forward_length; position < plan.sequence.size(); ++position) {
    const std::size_t unit = plan.sequence[position];
    GradientUse& use = plan.gradients[unit];
    if (use.first != position || sizes[unit].gradient == 0) continue;
    const bool waits = use.last > plan.unshards[plan.unshard_of[position]].last;
    const auto begin = waits ? busy_until.begin() + rotation : busy_until.begin();
    const auto end = waits ? busy_until.end() : busy_until.begin() + rotation;
    // Prefers the slot that has been free longest, because its last reduction is most likely
    // complete.
    auto best = std::min_element(begin, end);
    if (best == end || (best->has_value() && **best >= position)) {
      busy_until.emplace_back();
      plan.gradient_slots.push_back(0);
      best = busy_until.end() - 1;
    }
    use.slot = static_cast<std::size_t>(best - busy_until.begin());
    *best = use.last;
    plan.gradient_slots[use.slot] = std::max(plan.gradient_slots[use.slot], sizes[unit].gradient);
  }
}

}  // namespace

PassPlan plan_pass(std::span<const std::size_t> order, std::span<const UnitSize> sizes,
                   PlanOptions options) {
  PassPlan plan;
  plan.forward_length = order.size();
  plan.sequence.assign(order.begin(), order.end());
  plan.sequence.insert(plan.sequence.end(), order.rbegin(), order.rend());
  plan_unshards(plan, sizes, options.prefetch);
  plan_gradients(plan, sizes, options.reduce_buffers);
  return plan;
}

}  // namespace atoll_v1::atoll::fsdp

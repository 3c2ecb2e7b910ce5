#include "fsdp/guards.hpp"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "core/log.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

constexpr std::string_view remedy =
    "call synchronize() on the compute stream after the scope opens, or enqueue the work on it";

std::string used_late(std::string_view scope) {
  return fmt::format("is used after the end of its {} scope: copy what you need before", scope);
}

}  // namespace

void Guards::seal() {
  scopes_.resize(setup_.plan.sequence.size());
  bool misses = false;  // true if the memory of a scope is not guarded
  for (std::size_t position = 0; position < scopes_.size(); ++position) {
    const UnitState& unit = setup_.state(setup_.plan.sequence[position]);
    if (unit.size.gathered == 0) continue;
    scopes_[position].parameters = guard_parameters(unit, position);
    misses = misses || !scopes_[position].parameters.mapping;
    if (position < setup_.plan.forward_length || unit.size.gradient == 0) continue;
    scopes_[position].gradients = guard_gradients(unit);
    misses = misses || !scopes_[position].gradients.mapping;
  }
  if (misses && !setup_.world().config().check.empty() &&
      setup_.options.device.kind() == DeviceKind::cpu) {
    log::warn(
        "ATOLL_CHECK=lifetimes: memory of the backend {} cannot be mapped twice, so the checker "
        "does not find reads of parameters on the host before their gather has arrived",
        setup_.scheduler.backend());
  }
}

Guards::Guarded Guards::guard(View memory, GuardRule rule) const {
  rule.on_fault = [world = setup_.ranks.link()](const std::string& text) { world.fail(text); };
  return {memory.data,
          setup_.options.device.backend()->guard(memory.data, memory.bytes(), std::move(rule))};
}

Guards::Guarded Guards::guard_parameters(const UnitState& unit, std::size_t position) const {
  const bool backward = position >= setup_.plan.forward_length;
  GuardRule rule{.access = Access::read,
                 .early = fmt::format("is read before its gather has arrived: {}", remedy),
                 .late = used_late(backward ? "backward" : "forward"),
                 .written =
                     "is written in a scope, where parameters are only read: write them with "
                     "Engine::assign()"};
  for (std::size_t p = 0; p < unit.params.size(); ++p) {
    const auto& [index, slot] = unit.locations[p];
    const UnitBucket& bucket = unit.buckets[index];
    const std::uint64_t each = size_of(bucket.dtype);
    rule.parts.push_back({bucket.gathered_offset + slot.offset * each, slot.count * each,
                          fmt::format("parameter {} of unit {}", unit.params[p].name, unit.name)});
  }
  const View first = storage_.unsharded(unit.buckets.front(), position);
  return guard({first.data, unit.size.gathered, DType::u8}, std::move(rule));
}

Guards::Guarded Guards::guard_gradients(const UnitState& unit) const {
  GuardRule rule{
      .access = Access::write,
      .early = fmt::format("is used while an earlier use of its memory may still run: {}", remedy),
      .late = used_late("backward")};
  View first;
  for (std::size_t p = 0; p < unit.params.size(); ++p) {
    const auto& [index, slot] = unit.locations[p];
    const UnitBucket& bucket = unit.buckets[index];
    if (!bucket.trainable) continue;
    if (bucket.gradient_offset == 0) first = storage_.unsharded_gradient(unit, bucket);
    rule.parts.push_back(
        {(bucket.gradient_offset + slot.offset) * sizeof(float), slot.count * sizeof(float),
         fmt::format("the gradient of parameter {} of unit {}", unit.params[p].name, unit.name)});
  }
  return guard({first.data, unit.size.gradient, DType::u8}, std::move(rule));
}

void Guards::open(Stream& compute, std::size_t position) {
  const Scope& scope = scopes_[position];
  for (const Guarded* guarded : std::array{&scope.parameters, &scope.gradients}) {
    if (!guarded->mapping) continue;
    guarded->mapping->begin();
    compute.enqueue([mapping = guarded->mapping] { mapping->allow(); });
  }
}

void Guards::close(Stream& compute, std::size_t position) {
  const Scope& scope = scopes_[position];
  for (const Guarded* guarded : std::array{&scope.parameters, &scope.gradients}) {
    if (!guarded->mapping) continue;
    guarded->mapping->end();
    compute.enqueue([mapping = guarded->mapping] { mapping->forbid(); });
  }
}

View Guards::Guarded::view_of(View view) const {
  if (!mapping) return view;
  const auto offset =
      static_cast<const std::byte*>(view.data) - static_cast<const std::byte*>(memory);
  return {static_cast<std::byte*>(mapping->data()) + offset, view.count, view.dtype};
}

View Guards::parameters(std::size_t position, View view) const {
  return scopes_[position].parameters.view_of(view);
}

View Guards::gradients(std::size_t position, View view) const {
  return scopes_[position].gradients.view_of(view);
}

}  // namespace atoll_v1::atoll::fsdp

#include "fsdp/pass_observer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

// The bits of gradients that compute has not written yet: a NaN that computations do not return.
constexpr std::byte poison{0xff};
constexpr std::uint32_t unwritten_bits = 0xffffffff;

constexpr std::string_view remedy =
    "call synchronize() on the compute stream after the scope opens, or enqueue the work on it";

std::string used_late(std::string_view scope) {
  return fmt::format("is used after the end of its {} scope: copy what you need before", scope);
}

}  // namespace

bool PassObserver::is_backward(std::size_t position) const noexcept {
  return position >= setup_.plan.forward_length;
}

const UnitState& PassObserver::unit_at(std::size_t position) const noexcept {
  return setup_.state(setup_.plan.sequence[position]);
}

void PassObserver::seal() {
  Stream& stream = setup_.scheduler.stream(Lane::gather);
  for (const auto& [memory, content] : storage_.contents()) {
    stream.backend().hold(memory.data, memory.bytes(), content);
  }
  stream.synchronize();
  for (const auto& unit : setup_.units) asked_.emplace_back(unit->params().size());
  scopes_.resize(setup_.plan.sequence.size());
  bool misses = false;  // true if the memory of a scope is not guarded
  for (std::size_t position = 0; position < scopes_.size(); ++position) {
    const UnitState& unit = unit_at(position);
    if (unit.size.gathered == 0) continue;
    scopes_[position].parameters = guard_parameters(unit, position);
    misses = misses || !scopes_[position].parameters.mapping;
    if (!is_backward(position) || unit.size.gradient == 0) continue;
    scopes_[position].gradients = guard_gradients(unit);
    misses = misses || !scopes_[position].gradients.mapping;
  }
  if (misses && !setup_.world().config().check.empty() &&
      setup_.options.device.kind() == DeviceKind::cpu) {
    log::warn(
        "ATOLL_CHECK=lifetimes: memory of the backend {} cannot be mapped twice, so the checker "
        "does not find reads of parameters on the CPU before their gather has arrived",
        setup_.scheduler.backend());
  }
}

PassObserver::Guarded PassObserver::guard(View memory, GuardRule rule) const {
  rule.on_fault = [world = setup_.ranks.link()](const std::string& text) { world.fail(text); };
  return {memory.data,
          setup_.options.device.backend()->guard(memory.data, memory.bytes(), std::move(rule))};
}

PassObserver::Guarded PassObserver::guard_parameters(const UnitState& unit,
                                                     std::size_t position) const {
  GuardRule rule{.access = Access::read,
                 .early = fmt::format("is read before its gather has arrived: {}", remedy),
                 .late = used_late(is_backward(position) ? "backward" : "forward"),
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

PassObserver::Guarded PassObserver::guard_gradients(const UnitState& unit) const {
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

void PassObserver::open(Stream& compute, std::size_t position, WriteMode mode) {
  Scope& scope = scopes_[position];
  const UnitState& unit = unit_at(position);
  scope.mode = mode;
  if (is_backward(position)) asked_[unit.index].assign(unit.params.size(), false);
  scope.begun = setup_.scheduler.begin_work(compute);
  report_uses(compute, position);
  if (checks_gradients(position)) {
    each_gradient(unit, [&](const ParamSpec&, View gradient) {
      compute.backend().fill(gradient.data, poison, gradient.bytes());
    });
  }
  for (const Guarded* guarded : std::array{&scope.parameters, &scope.gradients}) {
    if (!guarded->mapping) continue;
    guarded->mapping->begin();
    compute.enqueue([mapping = guarded->mapping] { mapping->allow(); });
  }
  scope.range =
      compute.backend().begin_range({is_backward(position) ? "backward" : "forward", unit.name});
}

void PassObserver::close(Stream& compute, std::size_t position) {
  const Scope& scope = scopes_[position];
  compute.backend().end_range(scope.range);
  for (const Guarded* guarded : std::array{&scope.parameters, &scope.gradients}) {
    if (!guarded->mapping) continue;
    guarded->mapping->end();
    compute.enqueue([mapping = guarded->mapping] { mapping->forbid(); });
  }
}

void PassObserver::complete(Stream& compute, std::size_t position) {
  const UnitState& unit = unit_at(position);
  report_uses(compute, position);
  if (checks_gradients(position)) check_gradients(compute, unit);
  warn_of_unwritten(position);
  setup_.scheduler.end_work(compute, scopes_[position].begun,
                            is_backward(position) ? "backward" : "forward", unit.name);
}

View PassObserver::Guarded::view_of(View view) const {
  if (!mapping) return view;
  const auto offset =
      static_cast<const std::byte*>(view.data) - static_cast<const std::byte*>(memory);
  return {static_cast<std::byte*>(mapping->data()) + offset, view.count, view.dtype};
}

View PassObserver::parameters(std::size_t position, View view) const {
  return scopes_[position].parameters.view_of(view);
}

View PassObserver::gradient(std::size_t position, std::size_t param, View view) {
  asked_[unit_at(position).index][param] = true;
  return scopes_[position].gradients.view_of(view);
}

void PassObserver::hold_parameters(Stream& stream, const Buffer& slot, const UnitState& unit) {
  stream.backend().hold(slot.data(), slot.bytes(), {parameters_of, unit.name});
}

void PassObserver::hold_gradient(Stream& stream, const Buffer& slot, const UnitState& unit) {
  stream.backend().hold(slot.data(), slot.bytes(), {gradient_of, unit.name});
}

void PassObserver::hold_nothing(Stream& stream, const Buffer& slot) {
  stream.backend().hold(slot.data(), slot.bytes(), {});
}

// Reports what compute reads and writes in a scope.
void PassObserver::report_uses(Stream& compute, std::size_t position) const {
  StreamBackend& stream = compute.backend();
  const UnitState& unit = unit_at(position);
  const bool backward = is_backward(position);
  const Label by{backward ? "backward" : "forward", unit.name};
  for (const UnitBucket& bucket : unit.buckets) {
    const View parameters = storage_.unsharded(bucket, position);
    stream.use(parameters.data, parameters.bytes(), Access::read, by, {parameters_of, unit.name});
    if (!backward || !bucket.trainable) continue;
    const View gradient = storage_.unsharded_gradient(unit, bucket);
    stream.use(gradient.data, gradient.bytes(), Access::write, by, {gradient_of, unit.name});
  }
}

bool PassObserver::checks_gradients(std::size_t position) const {
  return scopes_[position].mode == WriteMode::overwrite && unit_at(position).size.gradient > 0 &&
         !setup_.world().config().check.empty();
}

template <class Visit>
void PassObserver::each_gradient(const UnitState& unit, const Visit& visit) const {
  for (std::size_t p = 0; p < unit.params.size(); ++p) {
    const auto& [index, slot] = unit.locations[p];
    if (!unit.buckets[index].trainable) continue;
    visit(unit.params[p],
          storage_.unsharded_gradient(unit, unit.buckets[index]).part(slot.offset, slot.count));
  }
}

// Makes the stream fail if an element still has the bits of `poison`.
void PassObserver::check_gradients(Stream& compute, const UnitState& unit) const {
  each_gradient(unit, [&](const ParamSpec& param, View gradient) {
    if (gradient.count == 0) return;
    const auto copy =
        std::make_shared<Buffer>(setup_.options.device.allocate_staging(gradient.bytes()));
    compute.copy(copy->data(), gradient.data, gradient.bytes());
    compute.enqueue([copy, count = gradient.count, unit = unit.name, param = param.name,
                     rank = setup_.world().rank()] {
      const std::span values(static_cast<const std::uint32_t*>(copy->data()), count);
      const auto unwritten = std::ranges::find(values, unwritten_bits);
      if (unwritten == values.end()) return;
      throw make_error(
          ErrorCode::internal,
          "rank {}: ATOLL_CHECK=lifetimes: backward of unit {} did not write element {} of the {} "
          "elements of the gradient of {}",
          rank, unit, unwritten - values.begin(), count, param);
    });
  });
}

void PassObserver::warn_of_unwritten(std::size_t position) {
  if (warned_of_unwritten_ || setup_.options.device.kind() == DeviceKind::simulated ||
      scopes_[position].mode != WriteMode::overwrite) {
    return;
  }
  const UnitState& unit = unit_at(position);
  for (std::size_t p = 0; p < unit.params.size(); ++p) {
    if (!unit.params[p].trainable || unit.params[p].count() == 0 || asked_[unit.index][p]) continue;
    warned_of_unwritten_ = true;
    return log::warn(
        "a backward scope of unit {} ended without grad(\"{}\"), so the gradient of this parameter "
        "is undefined: write every gradient, zeros where compute adds nothing",
        unit.name, unit.params[p].name);
  }
}

}  // namespace atoll_v1::atoll::fsdp

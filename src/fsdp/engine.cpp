#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/log.hpp"
#include "device/ops.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

Axis alone(World& world, std::string name) { return {&world, std::move(name), {world.rank()}, 0}; }

Axis shard_axis(const Mesh& mesh, Strategy strategy) {
  switch (strategy) {
    case Strategy::no_shard:
      return alone(mesh.world(), "shard");
    case Strategy::full_shard:
      return mesh.axis("world");
    case Strategy::hybrid_shard:
      return mesh.axis("shard");
  }
  return {};
}

Axis replicate_axis(const Mesh& mesh, Strategy strategy) {
  switch (strategy) {
    case Strategy::no_shard:
      return mesh.axis("world");
    case Strategy::full_shard:
      return alone(mesh.world(), "replicate");
    case Strategy::hybrid_shard:
      return mesh.axis("replicate");
  }
  return {};
}

void check_options(const Options& options) {
  const auto fine = [](DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; };
  if (!fine(options.precision.param)) {
    throw Error(ErrorCode::unsupported, fmt::format("Engine: parameters in {}: use f32 or bf16",
                                                    name(options.precision.param)));
  }
  if (options.precision.reduce != DType::f32) {
    throw Error(ErrorCode::unsupported, fmt::format("Engine: gradients reduced in {}: use f32",
                                                    name(options.precision.reduce)));
  }
  if (options.prefetch < 0) {
    throw Error(ErrorCode::invalid_argument, "Engine: prefetch must not be negative");
  }
}

// Shapes that make sense, and names that are unique.
void check_params(std::string_view unit, const std::vector<ParamSpec>& params) {
  constexpr std::uint64_t largest_unit = std::uint64_t{1} << 48;  // elements
  std::set<std::string_view> names;
  std::uint64_t total = 0;
  for (const auto& param : params) {
    std::uint64_t count = 1;
    for (const std::int64_t extent : param.shape) {
      const bool fits = extent >= 0 &&
                        (extent == 0 || count <= largest_unit / static_cast<std::uint64_t>(extent));
      count = fits ? count * static_cast<std::uint64_t>(extent) : largest_unit + 1;
      if (count > largest_unit) break;
    }
    total += count;
    if (count > largest_unit || total > largest_unit || !names.insert(param.name).second) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("add_unit({}): parameter {} has an impossible shape or a name in use",
                              unit, param.name));
    }
  }
}

}  // namespace

std::string_view name(Strategy strategy) noexcept {
  switch (strategy) {
    case Strategy::no_shard:
      return "no_shard";
    case Strategy::full_shard:
      return "full_shard";
    case Strategy::hybrid_shard:
      return "hybrid_shard";
  }
  return "?";
}

Strategy strategy_from_name(std::string_view text) {
  for (const auto strategy : {Strategy::no_shard, Strategy::full_shard, Strategy::hybrid_shard}) {
    if (name(strategy) == text) return strategy;
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("unknown strategy \"{}\": use no_shard, full_shard or hybrid_shard", text));
}

std::uint64_t ParamSpec::count() const noexcept {
  std::uint64_t product = 1;
  for (const std::int64_t extent : shape) product *= static_cast<std::uint64_t>(extent);
  return product;
}

Unit::Unit(std::unique_ptr<State> state) : state_(std::move(state)) {}
Unit::~Unit() = default;
const std::string& Unit::name() const noexcept { return state_->name; }
const std::vector<ParamSpec>& Unit::params() const noexcept { return state_->params; }

std::uint64_t Unit::count() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& param : state_->params) sum += param.count();
  return sum;
}

std::size_t Unit::State::find(std::string_view param) const {
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].name == param) return i;
  }
  throw Error(ErrorCode::not_found, fmt::format("unit {} has no parameter \"{}\"", name, param));
}

Engine::Impl::Impl(const Mesh& mesh, Options options_)
    : options(std::move(options_)),
      world(mesh.world()),
      scheduler(shard_axis(mesh, options.strategy), replicate_axis(mesh, options.strategy),
                {.device = options.device, .backend = options.backend}) {}

void Engine::Impl::allocate() {
  allocate_shards();
  allocate_slots();
}

void Engine::Impl::allocate_shards() {
  std::uint64_t owned = 0, largest = 0;
  for (const auto& unit : units) {
    owned += unit->state().layout.shard_elements();
    largest = std::max(largest, unit->state().layout.shard_elements());
  }
  const Device& device = options.device;
  memory.parameters = owned * sizeof(float);
  memory.gradients = owned * sizeof(float);
  memory.parameters_low =
      sharded() || !low_precision() ? 0 : owned * size_of(options.precision.param);
  memory.staging = sharded() ? largest * sizeof(float) : 0;
  masters = device.allocate(memory.parameters);
  gradients = device.allocate(memory.gradients);
  lows = device.allocate(memory.parameters_low);
  staging = device.allocate(memory.staging);

  std::uint64_t offset = 0;
  for (const auto& unit : units) {
    Unit::State& state = unit->state();
    const std::uint64_t n = state.layout.shard_elements();
    state.master = masters.view(DType::f32).part(offset, n);
    state.gradient = gradients.view(DType::f32).part(offset, n);
    if (lows.bytes()) state.low = lows.view(options.precision.param).part(offset, n);
    offset += n;
  }
  // Padding stays zero for ever: it adds nothing to a norm, and an optimizer does not move it.
  Stream& stream = scheduler.stream(Lane::gather);
  stream.zero(masters.data(), masters.bytes());
  stream.zero(gradients.data(), gradients.bytes());
  stream.zero(lows.data(), lows.bytes());
  stream.synchronize();
}

void Engine::Impl::allocate_slots() {
  if (!sharded()) return;
  for (const std::uint64_t elements : plan.gathered_slots) {
    const std::uint64_t bytes = elements * size_of(options.precision.param);
    memory.gathered += bytes;
    gathered_slots.push_back({options.device.allocate(bytes), {}});
  }
  for (const std::uint64_t elements : plan.gradient_slots) {
    const std::uint64_t bytes = elements * sizeof(float);
    memory.gradients_whole += bytes;
    gradient_slots.push_back({options.device.allocate(bytes), {}, {}});
  }
}

void Engine::Impl::wait_idle_parameters(Stream& stream) {
  stream.wait(parameters_ready);
  stream.wait(passed);
}

// Waits until nothing uses the buffers any more. Failures have been told to whoever waited for
// them.
void Engine::Impl::settle() noexcept {
  const auto wait = [](const auto& what) {
    try {
      what();
    } catch (...) {
      return;
    }
  };
  wait([&] { scheduler.synchronize(); });
  wait([&] { parameters_ready.synchronize(); });
  wait([&] { passed.synchronize(); });
}

Engine::Engine(const Mesh& mesh, Options options) {
  check_options(options);
  impl_ = std::make_unique<Impl>(mesh, std::move(options));
}

Engine::~Engine() {
  if (impl_) impl_->settle();
}

Unit& Engine::add_unit(std::string_view unit_name, std::vector<ParamSpec> params) {
  if (impl_->frozen) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("add_unit({}): the engine is frozen", unit_name));
  }
  if (impl_->by_name.contains(unit_name)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("add_unit({}): name in use", unit_name));
  }
  check_params(unit_name, params);
  auto state = std::make_unique<Unit::State>();
  state->name = unit_name;
  state->index = impl_->units.size();
  std::vector<std::uint64_t> counts;
  for (const auto& param : params) counts.push_back(param.count());
  state->layout = plan_bucket(counts, static_cast<std::uint64_t>(impl_->scheduler.shard_count()));
  state->params = std::move(params);
  impl_->by_name.emplace(unit_name, state->index);
  impl_->units.push_back(std::make_unique<Unit>(std::move(state)));
  return *impl_->units.back();
}

void Engine::freeze(const std::vector<std::string>& order) {
  if (impl_->frozen) throw Error(ErrorCode::invalid_argument, "freeze: called twice");
  std::vector<std::size_t> indices;
  std::vector<bool> used(impl_->units.size(), false);
  for (const auto& unit_name : order) {
    indices.push_back(unit(unit_name).state().index);
    used[indices.back()] = true;
  }
  std::vector<std::uint64_t> elements;
  for (const auto& unit : impl_->units) {
    if (!used[unit->state().index]) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("freeze: unit {} is not in the order", unit->name()));
    }
    elements.push_back(unit->state().layout.elements);
  }
  impl_->plan = plan_pass(indices, elements, static_cast<std::size_t>(impl_->options.prefetch));
  impl_->allocate();
  impl_->frozen = true;
}

Unit& Engine::unit(std::string_view unit_name) {
  const auto found = impl_->by_name.find(unit_name);
  if (found == impl_->by_name.end()) {
    throw Error(ErrorCode::not_found, fmt::format("the engine has no unit \"{}\"", unit_name));
  }
  return *impl_->units[found->second];
}

const std::vector<std::unique_ptr<Unit>>& Engine::units() const noexcept { return impl_->units; }
const Options& Engine::options() const noexcept { return impl_->options; }
const Device& Engine::device() const noexcept { return impl_->options.device; }
MeshShape Engine::sharding() const noexcept {
  return {impl_->scheduler.replicate_count(), impl_->scheduler.shard_count()};
}
std::string_view Engine::backend() const noexcept { return impl_->scheduler.backend(); }
MemoryPlan& Engine::memory() noexcept { return impl_->memory; }
Scheduler& Engine::scheduler() noexcept { return impl_->scheduler; }
Engine::Traffic Engine::traffic() const noexcept { return impl_->traffic; }

}  // namespace atoll_v1::atoll::fsdp

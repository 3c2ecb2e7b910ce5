#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/log.hpp"
#include "device/ops.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

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
    if (param.dtype && !computes_in(*param.dtype)) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("add_unit({}): parameter {} in {}: use f32 or bf16", unit, param.name,
                              atoll::name(*param.dtype)));
    }
    if (count > largest_unit || total > largest_unit || !names.insert(param.name).second) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("add_unit({}): parameter {} has an impossible shape or a name in use",
                              unit, param.name));
    }
  }
}

// One bucket for each dtype of trainable and of frozen parameters, in the order of the first.
void make_buckets(Unit::State& unit, DType usual, std::uint64_t shards) {
  std::vector<std::vector<std::uint64_t>> counts;
  std::vector<std::size_t> index_in_bucket;
  for (const ParamSpec& param : unit.params) {
    const DType dtype = param.dtype.value_or(usual);
    const auto found = std::ranges::find_if(unit.buckets, [&](const UnitBucket& bucket) {
      return bucket.dtype == dtype && bucket.trainable == param.trainable;
    });
    const auto index = static_cast<std::size_t>(found - unit.buckets.begin());
    if (found == unit.buckets.end()) {
      UnitBucket& bucket = unit.buckets.emplace_back();
      bucket.dtype = dtype;
      bucket.trainable = param.trainable;
      counts.emplace_back();
    }
    unit.places.push_back({index, {}});
    index_in_bucket.push_back(counts[index].size());
    counts[index].push_back(param.count());
  }
  for (std::size_t b = 0; b < unit.buckets.size(); ++b) {
    UnitBucket& bucket = unit.buckets[b];
    bucket.layout = plan_bucket(counts[b], shards);
    bucket.gathered_offset = unit.size.gathered;
    bucket.gradient_offset = unit.size.gradient / sizeof(float);
    unit.size.gathered += bucket.layout.elements * size_of(bucket.dtype);
    if (bucket.trainable) unit.size.gradient += bucket.layout.elements * sizeof(float);
  }
  for (std::size_t p = 0; p < unit.places.size(); ++p) {
    Unit::State::Place& place = unit.places[p];
    place.slot = unit.buckets[place.bucket].layout.slots[index_in_bucket[p]];
  }
}

}  // namespace

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

std::string UnitBucket::label() const {
  return fmt::format("{}{}", trainable ? "" : "frozen ", atoll::name(dtype));
}

Engine::Impl::Impl(const Mesh& mesh, Options options_)
    : options(std::move(options_)),
      world(mesh.world()),
      sharding(sharding_of(mesh, options)),
      scheduler(sharding.shard, sharding.replicate,
                {.device = options.device,
                 .inner = sharding.inner,
                 .backend = options.backend,
                 .root = mesh.axis("world")}) {
  options.device = scheduler.device();
  if (!world.config().check.empty() && world.rank() == 0) {
    log::info("ATOLL_CHECK={}: uses of device memory are checked; steps take longer",
              world.config().check);
  }
}

void Engine::Impl::update(Unit::State& unit, const Event& event, Stale stale) {
  unit.updated = event;
  unit.stale = std::max(unit.stale, stale);
  for (GatheredSlot& slot : gathered_slots) {
    if (slot.holds == unit.index) slot.stale = true;
  }
}

void Engine::Impl::wait_updated(Stream& stream) {
  for (const auto& unit : units) stream.wait(unit->state().updated);
}

void Engine::Impl::check_idle() const {
  if (!active) return;
  throw Error(ErrorCode::invalid_argument,
              "Engine: parameters cannot be written or loaded while a pass is under way");
}

void Engine::Impl::wait_idle_parameters(Stream& stream) {
  check_idle();
  wait_updated(stream);
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
  for (const auto& unit : units) wait([&] { unit->state().updated.synchronize(); });
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
  state->params = std::move(params);
  make_buckets(*state, impl_->options.precision.param,
               static_cast<std::uint64_t>(impl_->scheduler.shard_count()));
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
  std::vector<UnitSize> sizes;
  for (const auto& unit : impl_->units) {
    if (!used[unit->state().index]) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("freeze: unit {} is not in the order", unit->name()));
    }
    sizes.push_back(unit->state().size);
  }
  const Options& wanted = impl_->options;
  impl_->plan = plan_pass(indices, sizes,
                          {.prefetch = static_cast<std::size_t>(wanted.prefetch),
                           .reduce_buffers = static_cast<std::size_t>(wanted.reduce_buffers)});
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

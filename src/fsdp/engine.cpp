#include <fmt/core.h>

#include <utility>

#include "core/log.hpp"
#include "device/ops.hpp"
#include "fsdp/engine_impl.hpp"

namespace atoll_v1::atoll::fsdp {

EngineSetup::EngineSetup(const Mesh& mesh, Options options_)
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
    log::info("ATOLL_CHECK={}: every use of device memory is checked, so steps take longer",
              world.config().check);
  }
}

void EngineSetup::set_zero(const Buffer& buffer) {
  Stream& stream = scheduler.stream(Lane::gather);
  stream.zero(buffer.data(), buffer.bytes());
  stream.synchronize();
}

EngineSetup& EngineAccess::setup(Engine& engine) noexcept { return engine.impl_->setup; }
Gathering& EngineAccess::gathering(Engine& engine) noexcept { return engine.impl_->gathering; }
Reducing& EngineAccess::reducing(Engine& engine) noexcept { return engine.impl_->reducing; }
PassState& EngineAccess::pass(Engine& engine) noexcept { return engine.impl_->pass; }

Engine::Engine(const Mesh& mesh, Options options) {
  check_options(options);
  impl_ = std::make_unique<Impl>(mesh, std::move(options));
}

Engine::~Engine() {
  if (impl_) impl_->pass.synchronize();
}

Unit& Engine::add_unit(std::string_view unit_name, std::vector<ParamSpec> params) {
  EngineSetup& setup = impl_->setup;
  if (setup.frozen) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("add_unit({}): freeze() has been called already", unit_name));
  }
  if (impl_->by_name.contains(unit_name)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("add_unit({}): the name is already in use", unit_name));
  }
  auto state = std::make_unique<UnitState>(unit_name, setup.units.size(), std::move(params));
  state->make_buckets(setup.options.precision.param,
                      static_cast<std::uint64_t>(setup.scheduler.shard_count()));
  impl_->by_name.emplace(unit_name, state->index);
  setup.units.push_back(EngineAccess::make_unit(std::move(state)));
  impl_->gathering.add_unit();
  impl_->reducing.add_unit();
  return *setup.units.back();
}

void Engine::freeze(const std::vector<std::string>& order) {
  EngineSetup& setup = impl_->setup;
  if (setup.frozen) throw Error(ErrorCode::invalid_argument, "freeze: called twice");
  std::vector<std::size_t> indices;
  std::vector<bool> used(setup.units.size(), false);
  for (const auto& unit_name : order) {
    indices.push_back(state_of(unit(unit_name)).index);
    used[indices.back()] = true;
  }
  std::vector<UnitSize> sizes;
  for (const auto& unit : setup.units) {
    if (!used[sizes.size()]) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("freeze: unit {} is not in the order", unit->name()));
    }
    sizes.push_back(state_of(*unit).size);
  }
  setup.plan =
      plan_pass(indices, sizes,
                {.prefetch = static_cast<std::size_t>(setup.options.prefetch),
                 .reduce_buffers = static_cast<std::size_t>(setup.options.reduce_buffers)});
  impl_->storage.allocate();
  impl_->gathering.freeze();
  impl_->reducing.freeze();
  setup.frozen = true;
}

Unit& Engine::unit(std::string_view unit_name) {
  const auto found = impl_->by_name.find(unit_name);
  if (found == impl_->by_name.end()) {
    throw Error(ErrorCode::not_found, fmt::format("the engine has no unit \"{}\"", unit_name));
  }
  return *impl_->setup.units[found->second];
}

Pass Engine::begin(const PassOptions& options, Stream& compute) {
  impl_->pass.begin(options, compute);
  return Pass(*this);
}

void Engine::wait_gradients(Stream& compute) {
  impl_->setup.world.check();
  impl_->reducing.wait(compute);
}

void Engine::parameters_changed(Stream& compute) {
  for (const auto& unit : impl_->setup.units) {
    for (const UnitBucket& bucket : state_of(*unit).buckets) {
      if (bucket.compute_copy.count == 0) continue;
      impl_->setup.ops().cast(compute, bucket.compute_copy, bucket.master);
    }
  }
  const Event updated = compute.record();
  for (std::size_t unit = 0; unit < impl_->setup.units.size(); ++unit) {
    impl_->gathering.masters_updated(unit, updated, Stale::all);
  }
}

const std::vector<std::unique_ptr<Unit>>& Engine::units() const noexcept {
  return impl_->setup.units;
}
const Options& Engine::options() const noexcept { return impl_->setup.options; }
const Device& Engine::device() const noexcept { return impl_->setup.options.device; }
MeshShape Engine::sharding() const noexcept {
  return {impl_->setup.scheduler.replicate_count(), impl_->setup.scheduler.shard_count()};
}
std::string_view Engine::backend() const noexcept { return impl_->setup.scheduler.backend(); }
MemoryPlan& Engine::memory() noexcept { return impl_->storage.plan(); }
Scheduler& Engine::scheduler() noexcept { return impl_->setup.scheduler; }
Engine::Traffic Engine::traffic() const noexcept {
  const auto gathered = impl_->gathering.traffic();
  const auto reduced = impl_->reducing.traffic();
  return {gathered.shard_bytes + reduced.shard_bytes, gathered.inner_bytes,
          reduced.replicate_bytes};
}

}  // namespace atoll_v1::atoll::fsdp

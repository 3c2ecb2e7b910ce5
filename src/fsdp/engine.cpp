#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "device/cpu/kernels.hpp"
#include "device/int8_blocks.hpp"
#include "fsdp/pass_state.hpp"
#include "fsdp/setup.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

const ParamSpec* first_quantized(const EngineSetup& setup) {
  for (const auto& unit : setup.units) {
    const auto found = std::ranges::find(unit->params(), true, &ParamSpec::quantized);
    if (found != unit->params().end()) return &*found;
  }
  return nullptr;
}

void check_quantized(const EngineSetup& setup) {
  const ParamSpec* const param = first_quantized(setup);
  const auto& [strategy, accumulation] =
      std::pair(setup.options.strategy, setup.options.accumulation);
  require(param == nullptr || !rule_of(strategy, accumulation).resident,
          "seal: parameter {} is quantized, but {} keeps whole parameters in the type of compute: "
          "use full_shard or hybrid_shard",
          param ? param->name : "", name(strategy));
}

// Ends a collective call of this rank whose callback may have thrown `problem`. The rank throws
// `problem`, and the other ranks throw Error with its text.
void share(const RankSet& ranks, std::string_view call, const std::exception_ptr& problem) {
  const auto rethrow = [&]() -> std::vector<Declaration> {
    if (!problem) return {};
    try {
      std::rethrow_exception(problem);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", call, error.what()));
    } catch (const std::exception& error) {
      throw invalid("{}: the callback threw an exception: {}", call, text_of(error));
    } catch (...) {
      throw invalid("{}: the callback threw {}", call, foreign_exception);
    }
  };
  try {
    agree(ranks, call, rethrow);
  } catch (...) {
    if (problem) std::rethrow_exception(problem);
    throw;
  }
}

}  // namespace

// `setup` is declared first because it contains the scheduler, with which the buffers are
// registered: buffers must be destroyed before the scheduler.
struct Engine::Impl {
  Impl(const Mesh& mesh, Options options) : setup(mesh, std::move(options)) {}

  Unit& unit(std::string_view name) const;
  PassPlan plan_of(const std::vector<std::string>& order) const;

  EngineSetup setup;
  // Index of each unit in setup.units, by the name of the unit.
  std::map<std::string, std::size_t, std::less<>> by_name;
  Storage storage{setup};
  Gathering gathering{setup, storage};
  Reducing reducing{setup, storage};
  PassState pass{setup, storage, gathering, reducing};
  EngineLink link;
};

EngineSetup& EngineAccess::setup(const Engine& engine) noexcept { return engine.impl_->setup; }
Gathering& EngineAccess::gathering(Engine& engine) noexcept { return engine.impl_->gathering; }
Reducing& EngineAccess::reducing(Engine& engine) noexcept { return engine.impl_->reducing; }
PassState& EngineAccess::pass(Engine& engine) noexcept { return engine.impl_->pass; }
const EngineLink& EngineAccess::link(const Engine& engine) noexcept { return engine.impl_->link; }

Engine::Engine(const Mesh& mesh, Options options) {
  std::optional<Mesh> own;
  agree({mesh.world(), mesh.axis("world").ranks}, "Engine", [&] {
    check_options(options);
    own = engine_mesh(mesh, options.axes);
    return declarations_of(mesh, options);
  });
  impl_ = std::make_unique<Impl>(*own, std::move(options));
  impl_->link = std::make_shared<Engine*>(this);
}

Engine::~Engine() {
  if (impl_->pass.number() != 0) {
    // The Pass can no longer end, and peers would wait for its collectives, so the job fails.
    const char* const text =
        "an Engine was destroyed while a Pass of it exists: destroy every Pass before its Engine";
    log::error("{}", text);
    impl_->setup.ranks.link().fail(text);
  }
  if (impl_->reducing.has_on_final()) {
    log::error("an Engine was destroyed before its Optimizer: destroy the Optimizer first");
  }
  impl_->setup.end_live_save();
  *impl_->link = nullptr;
  impl_->pass.synchronize();
}

Unit& Engine::add_unit(std::string_view unit_name, std::vector<ParamSpec> params) {
  EngineSetup& setup = impl_->setup;
  const OneThread one(setup.calling, "add_unit");
  if (setup.sealed) throw invalid("add_unit({}): seal() has been called already", unit_name);
  require(!impl_->by_name.contains(unit_name), "add_unit({}): the name is already in use",
          unit_name);
  auto state = std::make_unique<UnitState>(
      unit_name, setup.units.size(), std::move(params), setup.options.precision.param,
      static_cast<std::uint64_t>(setup.scheduler.shard_count()));
  impl_->by_name.emplace(unit_name, state->index);
  setup.units.push_back(EngineAccess::make_unit(std::move(state)));
  impl_->gathering.add_unit();
  impl_->reducing.add_unit();
  return *setup.units.back();
}

void Engine::seal(const std::vector<std::string>& order) {
  EngineSetup& setup = impl_->setup;
  const OneThread one(setup.calling, "seal");
  agree(setup.ranks, "seal", [&] {
    if (setup.sealed) throw invalid("seal: called twice");
    check_quantized(setup);
    setup.plan = impl_->plan_of(order);
    return declarations_of(setup.units, order);
  });
  // One shard makes units resident, which would keep whole parameters in the compute dtype beside
  // the 8-bit ones. An engine with quantized parameters therefore has no resident units.
  if (first_quantized(setup)) setup.sharding.resident = false;
  impl_->storage.plan_memory();
  if (!setup.options.plan_only) {
    impl_->storage.allocate();
    impl_->gathering.seal();
    impl_->reducing.seal();
    impl_->pass.seal();
  }
  setup.sealed = true;
}

PassPlan Engine::Impl::plan_of(const std::vector<std::string>& order) const {
  std::vector<std::size_t> indices;
  std::vector<bool> used(setup.units.size(), false);
  for (const auto& unit_name : order) {
    indices.push_back(state_of(unit(unit_name)).index);
    used[indices.back()] = true;
  }
  std::vector<UnitSize> sizes;
  for (const auto& unit : setup.units) {
    if (!used[sizes.size()])
      throw invalid("seal: unit {} does not occur in the declared order", unit->name());
    sizes.push_back(state_of(*unit).size);
  }
  return plan_pass(indices, sizes,
                   {.prefetch = static_cast<std::size_t>(setup.options.prefetch),
                    .reduce_buffers = static_cast<std::size_t>(setup.options.reduce_buffers)});
}

Unit& Engine::Impl::unit(std::string_view name) const {
  const auto found = by_name.find(name);
  require(found != by_name.end(), ErrorCode::not_found, "the engine has no unit \"{}\"", name);
  return *setup.units[found->second];
}

Unit& Engine::unit(std::string_view unit_name) { return impl_->unit(unit_name); }

const std::vector<std::unique_ptr<Unit>>& Engine::units() const noexcept {
  return impl_->setup.units;
}
const Options& Engine::options() const noexcept { return impl_->setup.options; }
const Device& Engine::device() const noexcept { return impl_->setup.options.device; }
MeshShape Engine::sharding() const noexcept {
  return {impl_->setup.scheduler.replicate_count(), impl_->setup.scheduler.shard_count()};
}
const Axis& Engine::shard_axis() const noexcept { return impl_->setup.sharding.shard; }
std::string_view Engine::backend() const noexcept { return impl_->setup.scheduler.backend(); }
MemoryPlan& Engine::memory() noexcept { return impl_->storage.plan(); }
Scheduler& Engine::scheduler() noexcept { return impl_->setup.scheduler; }
Engine::Traffic Engine::traffic() const noexcept {
  const Traffic &gathered = impl_->gathering.traffic(), &reduced = impl_->reducing.traffic();
  return {gathered.shard_bytes + reduced.shard_bytes, gathered.secondary_bytes,
          reduced.replicate_bytes};
}

void Engine::assign(const std::function<void(const Segment&, std::span<float>)>& fill) {
  const OneThread one(impl_->setup.calling, "assign");
  impl_->setup.check_sealed("assign");
  impl_->pass.check_idle();
  std::exception_ptr problem;
  try {
    require(fill != nullptr, "assign: the callback is an empty function");
    EngineAccess::assign(*this, [&](const Segment& segment, std::span<float> values) {
      fill(segment, values);
      return true;
    });
  } catch (...) {
    problem = std::current_exception();
  }
  share(impl_->setup.ranks, "assign", problem);
  impl_->setup.has_values = true;
}

void EngineAccess::assign(Engine& engine,
                          const std::function<bool(const Segment&, std::span<float>)>& fill) {
  Stream& stream = setup(engine).scheduler.stream(Lane::gather);
  pass(engine).wait_idle(stream);
  setup(engine).end_live_save();
  std::vector<float> values;
  SegmentWriter writer(stream);
  try {
    for (const Segment& segment : engine.segments()) {
      values.resize(segment.count);
      setup(engine).begin_fill(segment);
      if (fill(segment, values)) writer.write(segment, 0, values);
    }
  } catch (...) {
    refresh(engine);  // some master parameters may be newer than the copies that compute reads
    throw;
  }
  setup(engine).unfilled.clear();
  refresh(engine);
}

void EngineAccess::refresh(Engine& engine) {
  Stream& stream = setup(engine).scheduler.stream(Lane::gather);
  pass(engine).wait_idle(stream);
  parameters_changed(engine, stream);
  stream.synchronize();
}

void Engine::refresh() {
  const OneThread one(impl_->setup.calling, "refresh");
  impl_->setup.check_sealed("refresh");
  EngineAccess::refresh(*this);
  impl_->setup.has_values = true;
}

void Engine::visit(
    const std::function<void(const Unit&, const ParamSpec&, std::span<const float>)>& visit) {
  const OneThread one(impl_->setup.calling, "visit");
  agree(impl_->setup.ranks, "visit", [&]() -> std::vector<Declaration> {
    impl_->setup.check_sealed("visit");
    impl_->pass.check_readable("visit");
    return {};
  });
  Stream& stream = impl_->setup.scheduler.stream(Lane::gather);
  impl_->gathering.wait_updated(stream);
  std::vector<std::vector<float>> values;  // whole parameters, one vector per bucket of a unit
  // The first exception of `visit`. The gathers continue after it, because peers wait for them.
  std::exception_ptr problem;
  const auto visit_param = [&](const Unit& unit, const ParamSpec& param,
                               std::span<const float> whole) {
    if (problem) return;
    try {
      require(visit != nullptr, "visit: the callback is an empty function");
      visit(unit, param, whole);
    } catch (...) {
      problem = std::current_exception();
    }
  };
  for (const auto& unit : impl_->setup.units) {
    const UnitState& state = state_of(*unit);
    values.resize(state.buckets.size());
    for (std::size_t b = 0; b < state.buckets.size(); ++b) {
      const UnitBucket& bucket = state.buckets[b];
      const Buffer whole =
          impl_->setup.options.device.allocate(bucket.master.bytes() * bucket.layout.shards);
      const View view = whole.view(bucket.master.dtype);
      impl_->setup.scheduler.all_gather(bucket.master, view, {}).synchronize();
      std::vector<std::byte> stored(whole.bytes());
      stream.copy(stored.data(), whole.data(), whole.bytes());
      stream.synchronize();
      values[b].resize(bucket.layout.elements);
      if (bucket.quantized) {
        cpu::dequantize(values[b], stored.data());
      } else {
        cpu::cast(values[b], ConstView(stored.data(), view.count, view.dtype));
      }
    }
    for (std::size_t p = 0; p < state.params.size(); ++p) {
      const auto& [bucket, slot] = state.locations[p];
      visit_param(*unit, state.params[p],
                  std::span(values[bucket]).subspan(slot.offset, slot.count));
    }
  }
  share(impl_->setup.ranks, "visit", problem);
}

}  // namespace atoll_v1::atoll::fsdp

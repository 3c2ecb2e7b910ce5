#include "fsdp/strategy.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

struct StrategyRow {
  Strategy value;
  std::string_view name;
  StrategyRule rule;  // definition of the strategy under Accumulation::automatic
};
// Rows are in the order of the enumerators of Strategy. The two flags of a row are
// StrategyRule::resident and StrategyRule::accumulates_unsharded.
constexpr std::array strategies = {
    StrategyRow{Strategy::no_shard, "no_shard", {ShardedOver::nothing, true, true}},
    StrategyRow{Strategy::shard_optimizer, "shard_optimizer", {ShardedOver::world, true, true}},
    StrategyRow{Strategy::shard_grad, "shard_grad", {ShardedOver::world, true, false}},
    StrategyRow{Strategy::full_shard, "full_shard", {ShardedOver::world, false, false}},
    StrategyRow{Strategy::hybrid_shard, "hybrid_shard", {ShardedOver::shard_axis, false, false}},
    StrategyRow{
        Strategy::hybrid_shard_grad, "hybrid_shard_grad", {ShardedOver::shard_axis, true, false}},
};
struct AccumulationRow {
  Accumulation value;
  std::string_view name;
};
constexpr std::array accumulations = {
    AccumulationRow{Accumulation::automatic, "auto"},
    AccumulationRow{Accumulation::shard, "shard"},
    AccumulationRow{Accumulation::local, "local"},
};

template <class Table>
auto find_value(const Table& table, std::string_view what, std::string_view text) {
  std::vector<std::string_view> known;
  for (const auto& row : table) {
    if (row.name == text) return row.value;
    known.push_back(row.name);
  }
  throw invalid("unknown {} \"{}\": use one of {}", what, text, fmt::join(known, ", "));
}

Axis alone(World& world, std::string name) {
  return {.world = &world, .name = std::move(name), .ranks = {world.rank()}, .index = 0};
}

// Returns the group of `ranks` consecutive ranks that contains this rank.
Axis secondary_axis(const Axis& shard, int ranks) {
  require(shard.size() % ranks == 0, "Engine: secondary_shards = {} does not divide the {} shards",
          ranks, shard.size());
  // Axis::block is the size of the mesh's shard groups, whose ranks are joined by fast links.
  if (shard.block > 0 && shard.block % ranks != 0 && ranks % shard.block != 0 && shard.index == 0) {
    log::warn(
        "secondary groups of {} ranks cross the mesh's shard groups of {} ranks, so backward "
        "gathers over slower links: use a divisor of {} for secondary_shards",
        ranks, shard.block, shard.block);
  }
  const auto first = shard.ranks.begin() + shard.index / ranks * ranks;
  return {shard.world, "secondary", {first, first + ranks}, shard.index % ranks};
}

}  // namespace

std::string_view name(Strategy strategy) noexcept {
  return strategies[static_cast<std::size_t>(strategy)].name;
}
std::string_view name(Accumulation accumulation) noexcept {
  return accumulations[static_cast<std::size_t>(accumulation)].name;
}
Strategy strategy_from_name(std::string_view text) {
  return find_value(strategies, "strategy", text);
}
Accumulation accumulation_from_name(std::string_view text) {
  return find_value(accumulations, "accumulation", text);
}

std::vector<Strategy> every_strategy() {
  std::vector<Strategy> all;
  for (const StrategyRow& row : strategies) all.push_back(row.value);
  return all;
}

bool computes_in(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

StrategyRule rule_of(Strategy strategy, Accumulation accumulation) noexcept {
  StrategyRule rule = strategies[static_cast<std::size_t>(strategy)].rule;
  if (accumulation != Accumulation::automatic) {
    rule.accumulates_unsharded = accumulation == Accumulation::local;
  }
  return rule;
}

void check_options(const Options& options) {
  const auto is_known = [](auto value, std::size_t values, std::string_view option) {
    require(static_cast<std::size_t>(value) < values, "Engine: Options::{} = {} has no meaning",
            option, static_cast<int>(value));
  };
  is_known(options.strategy, strategies.size(), "strategy");
  is_known(options.accumulation, accumulations.size(), "accumulation");
  is_known(options.gradients, 2, "gradients");
  is_known(options.gather_units, 3, "gather_units");
  require(computes_in(options.precision.param), ErrorCode::unsupported,
          "Engine: parameters cannot be {}: use f32, bf16 or f16", name(options.precision.param));
  const DType reduce = options.precision.reduce;
  require(reduce == DType::f32 || reduce == DType::bf16, ErrorCode::unsupported,
          "Engine: gradients cannot be reduced in {}: use f32 or bf16", name(reduce));
  require(!options.synchronous || options.device.kind() == DeviceKind::cpu,
          "Engine: Options::synchronous is for trainers that compute on the CPU, but the device is "
          "{}: leave it off, and enqueue compute on the stream given to begin()",
          options.device.name());
  require(
      options.prefetch >= 0 && options.reduce_buffers >= 1 && options.secondary_shards >= 0,
      "Engine: prefetch is {}, reduce_buffers is {} and secondary_shards is {}, but they must be "
      "at least 0, 1 and 0",
      options.prefetch, options.reduce_buffers, options.secondary_shards);
}

Mesh engine_mesh(const Mesh& mesh, const EngineAxes& axes) {
  require(mesh.has_axis(axes.shard),
          "Engine: the mesh {} has no axis \"{}\": set Options::axes.shard to the name of the axis "
          "to shard over",
          mesh.to_string(), axes.shard);
  require(
      axes.replicate != axes.shard,
      "Engine: Options::axes names the axis \"{}\" twice: the replicate axis and the shard axis "
      "must differ",
      axes.shard);
  if (!mesh.has_axis(axes.replicate)) return mesh.sub({axes.shard});
  return mesh.sub({axes.replicate, axes.shard});
}

Sharding sharding_of(const Mesh& mesh, const Options& options) {
  World& world = mesh.world();
  const StrategyRule rule = rule_of(options.strategy, options.accumulation);
  Sharding sharding{{}, {}, {}, rule.resident, rule.accumulates_unsharded};
  switch (rule.over) {
    case ShardedOver::nothing:
      sharding.shard = alone(world, "shard");
      sharding.replicate = mesh.axis("world");
      break;
    case ShardedOver::world:
      sharding.shard = mesh.axis("world");
      sharding.replicate = alone(world, "replicate");
      break;
    case ShardedOver::shard_axis:
      sharding.shard = mesh.axis(options.axes.shard);
      sharding.replicate = mesh.has_axis(options.axes.replicate)
                               ? mesh.axis(options.axes.replicate)
                               : alone(world, options.axes.replicate);
      break;
  }
  const bool sharded = sharding.shard.size() > 1;
  if (!sharded) sharding.resident = sharding.accumulates_unsharded = true;
  if (!sharding.resident && options.secondary_shards > 0) {
    sharding.secondary = secondary_axis(sharding.shard, options.secondary_shards);
  }
  return sharding;
}

}  // namespace atoll_v1::atoll::fsdp

#include "atoll/mesh.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "comm/placement/rank_environment.hpp"
#include "core/errors.hpp"
#include "core/text.hpp"
#include "core/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr int most_ranks = 1'000'000;

MeshPlan row_major(const World& world, MeshShape shape) {
  const auto count = std::int64_t{shape.replicate} * shape.shard;
  require(shape.replicate >= 1 && shape.shard >= 1 && count == world.size(),
          "a mesh of {}x{} does not fit a world of {} ranks", shape.replicate, shape.shard,
          world.size());
  MeshPlan plan;
  plan.replicate = shape.replicate;
  plan.shard = shape.shard;
  plan.order.resize(static_cast<std::size_t>(world.size()));
  std::iota(plan.order.begin(), plan.order.end(), 0);
  return plan;
}

MeshPlanOptions plan_options(const World& world) {
  return {.emulated_islands = world.config().islands};
}

}  // namespace

std::vector<RankSite> locate_ranks(const Topology& topology, World& world) {
  const auto texts = world.exchange("atoll/ranks", to_text(look_around()));
  std::vector<RankEnvironment> ranks;
  for (const Placement& placement : world.placements()) {
    RankEnvironment rank =
        rank_environment_from(texts.at(static_cast<std::size_t>(placement.rank)));
    rank.host = world.hosts().at(static_cast<std::size_t>(placement.host)).id;
    rank.local_rank = placement.local_rank;
    ranks.push_back(std::move(rank));
  }
  return resolve_ranks(topology, ranks);
}

MeshShape parse_mesh(std::string_view text) {
  const auto extents = split(text, 'x');
  const auto replicate = number_from<int>(extents.front());
  const auto shard = number_from<int>(extents.back());
  if (extents.size() != 2 || !replicate || !shard || *replicate < 1 || *shard < 1 ||
      std::int64_t{*replicate} * *shard > most_ranks)
    throw invalid("\"{}\" is not a mesh: write replicate x shard, as in 2x4", text);
  return {*replicate, *shard};
}

Mesh::Mesh(World& world, MeshShape shape, const std::vector<int>& order)
    : world_(&world), shape_(shape) {
  const auto place = std::ranges::find(order, world.rank()) - order.begin();
  const int mine = static_cast<int>(place);
  const int row = mine / shape.shard, column = mine % shape.shard;
  const auto rank_at = [&](int r, int s) {
    return order[static_cast<std::size_t>(r) * static_cast<std::size_t>(shape.shard) +
                 static_cast<std::size_t>(s)];
  };
  Axis shard{.world = world_, .name = "shard", .ranks = {}, .index = column};
  for (int s = 0; s < shape.shard; ++s) shard.ranks.push_back(rank_at(row, s));
  Axis replicate{.world = world_, .name = "replicate", .ranks = {}, .index = row};
  for (int r = 0; r < shape.replicate; ++r) replicate.ranks.push_back(rank_at(r, column));
  axes_ = {
      std::move(shard), std::move(replicate),
      Axis{.world = world_, .name = "world", .ranks = order, .index = mine, .block = shape_.shard}};
  for (Axis& axis : axes_) axis.hold = WorldInternals::hold(world);
}

Mesh Mesh::plan(const Topology& topology, World& world) {
  const auto ranks = locate_ranks(topology, world);
  const MeshPlan plan = plan_mesh(topology, ranks, plan_options(world));
  Mesh mesh = from_plan(world, plan);
  mesh.set_rates(mesh_rates(topology, ranks, plan, plan_options(world)));
  return mesh;
}

Mesh Mesh::from_plan(World& world, MeshPlan plan) {
  require(plan.inner == 1, ErrorCode::unsupported,
          "a mesh plan with an inner axis of {} ranks is not supported: use only replicate x shard",
          plan.inner);
  Mesh mesh(world, {plan.replicate, plan.shard}, plan.order);
  mesh.reason_ = std::move(plan.why);
  mesh.findings_ = std::move(plan.findings);
  return mesh;
}

Mesh Mesh::make(World& world, MeshShape shape) {
  Mesh mesh(world, shape, row_major(world, shape).order);
  mesh.reason_ = fmt::format("the user requested {}x{}", shape.replicate, shape.shard);
  return mesh;
}

Mesh Mesh::make(World& world, MeshShape shape, const Topology& topology) {
  Mesh mesh = make(world, shape);
  const auto ranks = locate_ranks(topology, world);
  const MeshPlan plan = row_major(world, shape);
  mesh.findings_ = check_mesh(topology, ranks, plan, plan_options(world));
  mesh.set_rates(mesh_rates(topology, ranks, plan, plan_options(world)));
  return mesh;
}

void Mesh::set_rates(const MeshRates& rates) {
  axes_[0].rate = rates.shard;
  axes_[0].levels = rates.shard_levels;
  axes_[1].rate = rates.replicate;
  axes_[1].levels = rates.replicate_levels;
  axes_[2].rate = rates.world;
  axes_[2].levels = rates.world_levels;
}

const Axis& Mesh::axis(std::string_view name) const {
  const auto found = std::ranges::find(axes_, name, &Axis::name);
  if (found == axes_.end())
    throw invalid("a mesh has no axis \"{}\": use shard, replicate or world", name);
  return *found;
}

std::string Mesh::to_string() const { return fmt::format("{}x{}", shape_.replicate, shape_.shard); }

}  // namespace atoll_v1::atoll

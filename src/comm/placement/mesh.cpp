#include "atoll/mesh.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "atoll/rank_set.hpp"
#include "comm/placement/rank_environment.hpp"
#include "core/errors.hpp"
#include "core/parse.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr int most_ranks = 1'000'000;
constexpr std::string_view replicate_name = "replicate", shard_name = "shard",
                           tensor_name = "tensor", world_name = "world";

using Dims = std::vector<std::size_t>;  // indices of axes

std::vector<int> row_major(int size) {
  std::vector<int> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<AxisSpec> axes_of(MeshShape shape) {
  return {{std::string(replicate_name), shape.replicate}, {std::string(shard_name), shape.shard}};
}

bool is_two_axes(const std::vector<AxisSpec>& axes) {
  return axes.size() == 2 && axes[0].name == replicate_name && axes[1].name == shard_name;
}

std::string text_of_axes(const std::vector<AxisSpec>& axes) {
  if (is_two_axes(axes)) return fmt::format("{}x{}", axes[0].size, axes[1].size);
  std::string text;
  for (const auto& [name, size] : axes)
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, size);
  return text;
}

int ranks_of(const std::vector<AxisSpec>& axes) {
  std::int64_t ranks = 1;
  for (const AxisSpec& axis : axes)
    ranks = std::min<std::int64_t>(ranks * axis.size, most_ranks + 1);
  return static_cast<int>(ranks);
}

void check_axes(const World& world, const std::vector<AxisSpec>& axes) {
  require(!axes.empty(), "a mesh needs at least one axis");
  for (auto axis = axes.begin(); axis != axes.end(); ++axis) {
    require(!axis->name.empty(), "an axis of a mesh needs a name");
    require(axis->name != world_name,
            "a mesh cannot name an axis \"world\": this name means all ranks of the mesh");
    require(std::find_if(axes.begin(), axis,
                         [&](const AxisSpec& other) { return other.name == axis->name; }) == axis,
            "a mesh cannot have two axes \"{}\"", axis->name);
    require(axis->size >= 1, "axis {} of a mesh cannot have {} ranks: it needs at least 1",
            axis->name, axis->size);
  }
  require(ranks_of(axes) == world.size(), "a mesh of {} does not fit a world of {} ranks",
          text_of_axes(axes), world.size());
}

MeshPlanOptions plan_options(const World& world, MeshPlanOptions options = {}) {
  if (options.emulated_islands == 0) options.emulated_islands = world.config().islands;
  return options;
}

std::optional<std::size_t> find_axis(const std::vector<AxisSpec>& axes, std::string_view name) {
  const auto found = std::ranges::find(axes, name, &AxisSpec::name);
  if (found == axes.end()) return std::nullopt;
  return static_cast<std::size_t>(found - axes.begin());
}

std::string names_of(const std::vector<AxisSpec>& axes) {
  std::vector<std::string_view> names;
  for (const AxisSpec& axis : axes) names.push_back(axis.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<Declaration> declarations_of(const MeshPlanOptions& options) {
  const auto text = [](const std::optional<double>& value) {
    return value ? fmt::format("{}", *value) : std::string("not set");
  };
  const std::string begin = "MeshPlanOptions::";
  return {{begin + "emulated_islands (ATOLL_ISLANDS)", std::to_string(options.emulated_islands)},
          {begin + "tensor", std::to_string(options.tensor)},
          {begin + "params", text(options.params)},
          {begin + "gpu_memory_bytes", text(options.gpu_memory_bytes)},
          {begin + "state_bytes", fmt::format("{}", options.state_bytes)},
          {begin + "reserve", fmt::format("{}", options.reserve)}};
}

// Returns the product of the sizes of some axes.
int product(std::span<const AxisSpec> axes) { return ranks_of({axes.begin(), axes.end()}); }

}  // namespace

struct Mesh::Layout {
  // The hosts and GPUs of the ranks; the rates of the axes are computed from them.
  struct Sites {
    Topology topology;
    std::vector<RankSite> ranks;
    MeshPlanOptions options;
  };

  std::vector<AxisSpec> axes;  // axes of the mesh, the outermost first
  std::vector<int> order;  // all ranks of the World in mesh order, the last axis varying fastest
  std::string reason;
  std::vector<Finding> findings{};
  std::optional<Sites> sites{};

  // Returns the ranks that differ from the rank at `place` of `order` only in the coordinates
  // `dims`, the last of which varies fastest.
  std::vector<int> group(std::size_t place, const Dims& dims) const {
    Dims places{place};
    for (const std::size_t dim : dims) {
      const auto stride = static_cast<std::size_t>(product(std::span(axes).subspan(dim + 1)));
      const auto size = static_cast<std::size_t>(axes[dim].size);
      Dims next;
      for (const std::size_t at : places) {
        const std::size_t first = at - at / stride % size * stride;
        for (std::size_t i = 0; i < size; ++i) next.push_back(first + i * stride);
      }
      places = std::move(next);
    }
    std::vector<int> ranks;
    for (const std::size_t at : places) ranks.push_back(order[at]);
    return ranks;
  }

  // Sets the rates of an axis over `dims`: those of the slowest group on any rank.
  void rate(Axis& axis, const Dims& dims) const {
    if (!sites) return;
    Dims all;  // the other axes first, so that each group of the axis is consecutive
    for (std::size_t dim = 0; dim < axes.size(); ++dim)
      if (std::ranges::find(dims, dim) == dims.end()) all.push_back(dim);
    all.insert(all.end(), dims.begin(), dims.end());
    MeshPlan plan;
    plan.shard = axis.size();
    plan.replicate = static_cast<int>(order.size()) / plan.shard;
    plan.order = group(0, all);
    const MeshRates rates = mesh_rates(sites->topology, sites->ranks, plan, sites->options);
    axis.rate = rates.shard;
    axis.levels = rates.shard_levels;
  }
};

std::vector<RankSite> locate_ranks(const Topology& topology, World& world) {
  const auto texts =
      world.exchange(store::titled("the places of the ranks", "ranks"), to_text(look_around()));
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

Mesh::Mesh(World& world, std::shared_ptr<const Layout> layout, const Dims& dims)
    : world_(&world), layout_(std::move(layout)) {
  const auto place = static_cast<std::size_t>(std::ranges::find(layout_->order, world.rank()) -
                                              layout_->order.begin());
  const auto add = [&](std::string name, const Dims& along) -> Axis& {
    Axis axis{.world = world_, .name = std::move(name), .ranks = layout_->group(place, along)};
    axis.index = static_cast<int>(std::ranges::find(axis.ranks, world.rank()) - axis.ranks.begin());
    axis.hold = WorldInternals::hold(world);
    layout_->rate(axis, along);
    return axes_.emplace_back(std::move(axis));
  };
  for (const std::size_t dim : dims) {
    specs_.push_back(layout_->axes[dim]);
    add(specs_.back().name, {dim});
  }
  add(std::string(world_name), dims).block = specs_.back().size;
}

Mesh Mesh::whole(World& world, Layout layout) {
  Dims dims(layout.axes.size());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  return {world, std::make_shared<const Layout>(std::move(layout)), dims};
}

Mesh Mesh::plan(const Topology& topology, World& world, MeshPlanOptions options) {
  options = plan_options(world, options);
  agree(world, "Mesh::plan", [&] { return declarations_of(options); });
  const auto ranks = locate_ranks(topology, world);
  Layout layout = layout_of(world, plan_mesh(topology, ranks, options));
  layout.sites = Layout::Sites{topology, ranks, options};
  return whole(world, std::move(layout));
}

Mesh Mesh::from_plan(World& world, MeshPlan plan) {
  Layout layout;
  agree(world, "Mesh::from_plan", [&]() -> std::vector<Declaration> {
    layout = layout_of(world, std::move(plan));
    return {{"the axes of the mesh", text_of_axes(layout.axes)},
            {"the order of the ranks", fmt::format("{}", fmt::join(layout.order, ", "))}};
  });
  return whole(world, std::move(layout));
}

Mesh::Layout Mesh::layout_of(const World& world, MeshPlan plan) {
  std::vector<AxisSpec> axes = axes_of({plan.replicate, plan.shard});
  if (plan.tensor != 1) axes.push_back({std::string(tensor_name), plan.tensor});
  check_axes(world, axes);
  std::vector<int> sorted = plan.order;
  std::ranges::sort(sorted);
  require(sorted == row_major(world.size()),
          "the order of a mesh plan must name each of the {} ranks once", world.size());
  return {std::move(axes), std::move(plan.order), std::move(plan.why), std::move(plan.findings)};
}

Mesh Mesh::make(World& world, MeshShape shape) { return make(world, axes_of(shape)); }

Mesh Mesh::make(World& world, MeshShape shape, const Topology& topology) {
  return make(world, axes_of(shape), topology);
}

Mesh Mesh::make(World& world, std::vector<AxisSpec> axes) {
  return whole(world, requested(world, std::move(axes)));
}

Mesh Mesh::make(World& world, std::vector<AxisSpec> axes, const Topology& topology) {
  return whole(world, requested(world, std::move(axes), &topology));
}

// Returns the layout of a mesh that the user requested. Collective. If the arguments of the ranks
// differ or are wrong, all ranks throw one error.
Mesh::Layout Mesh::requested(World& world, std::vector<AxisSpec> axes, const Topology* topology) {
  agree(world, "Mesh::make", [&]() -> std::vector<Declaration> {
    check_axes(world, axes);
    return {{"the axes of the mesh", text_of_axes(axes)},
            {"the topology", topology ? "given" : "not given"}};
  });
  Layout layout{std::move(axes), row_major(world.size()), {}};
  layout.reason = fmt::format("the user requested {}", text_of_axes(layout.axes));
  if (!topology) return layout;
  layout.sites = Layout::Sites{*topology, locate_ranks(*topology, world), plan_options(world)};
  const auto shard = find_axis(layout.axes, shard_name);
  if (!shard) return layout;
  MeshPlan plan;
  const std::span all(layout.axes);
  plan.replicate = product(all.first(*shard));
  plan.shard = all[*shard].size;
  plan.tensor = product(all.subspan(*shard + 1));
  plan.order = layout.order;
  layout.findings = check_mesh(*topology, layout.sites->ranks, plan, layout.sites->options);
  return layout;
}

Mesh Mesh::sub(const std::vector<std::string>& names) const {
  require(!names.empty(), "a sub-mesh of {} needs at least one axis", to_string());
  Dims dims;
  for (const std::string& name : names) {
    require(has_axis(name), "a sub-mesh of {} cannot have an axis \"{}\": its axes are {}",
            to_string(), name, names_of(specs_));
    const std::size_t dim = *find_axis(layout_->axes, name);
    require(std::ranges::find(dims, dim) == dims.end(),
            "a sub-mesh of {} cannot have two axes \"{}\"", to_string(), name);
    dims.push_back(dim);
  }
  const bool is_same = std::ranges::equal(names, specs_, {}, {}, &AxisSpec::name);
  return is_same ? *this : Mesh(world(), layout_, dims);
}

World& Mesh::world() const {
  require(!axes_.empty(), "this Mesh was moved from: use the Mesh that it was moved to");
  require(!WorldInternals::is_over(axes_.back().hold),
          "Mesh: its World has been destroyed: destroy meshes before their World");
  return *world_;
}

MeshShape Mesh::shape() const noexcept {
  const auto size = [&](std::string_view name) {
    const auto dim = find_axis(specs_, name);
    return dim ? specs_[*dim].size : 1;
  };
  return {size(replicate_name), size(shard_name)};
}

bool Mesh::has_axis(std::string_view name) const noexcept {
  return find_axis(specs_, name).has_value();
}

const Axis& Mesh::axis(std::string_view name) const {
  const auto found = std::ranges::find(axes_, name, &Axis::name);
  require(found != axes_.end(), "the mesh {} has no axis \"{}\": its axes are {} and world",
          to_string(), name, names_of(specs_));
  return *found;
}

const std::string& Mesh::reason() const noexcept {
  static const std::string none;
  return layout_ ? layout_->reason : none;
}

const std::vector<Finding>& Mesh::findings() const noexcept {
  static const std::vector<Finding> none;
  return layout_ ? layout_->findings : none;
}

std::string Mesh::to_string() const { return text_of_axes(specs_); }

}  // namespace atoll_v1::atoll

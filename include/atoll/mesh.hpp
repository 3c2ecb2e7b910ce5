// A mesh arranges the ranks of a job in named axes: `replicate` x `shard`, and others that the
// program names.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/mesh_plan.hpp"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// One axis of a mesh: the ranks that differ from this rank only in one coordinate. A communicator
// is opened over an axis. A program may also fill in an Axis itself. It then needs `world`, `name`,
// `ranks` (ranks of the World, each once, in the same order on all of them) and `index`, where
// ranks[index] is this rank; the other members may keep their defaults. Communicator::open() throws
// Error(invalid_argument) if ranks or index are wrong, and Error(mismatch) if the ranks passed
// different axes.
struct Axis {
  World* world = nullptr;
  std::string name;        // name of the axis, such as "shard"; "world" for all ranks of a mesh
  std::vector<int> ranks;  // ranks of the World, ordered by their position on this axis
  int index = 0;           // position of this rank in `ranks`
  GroupRate rate{};        // rate of the slowest group of this axis; unknown without a topology
  LevelRates levels{};     // rates of the axis's slowest group inside hosts and across hosts
  // Number of neighbouring ranks in a block. Under Config::deterministic the ranks of a block are
  // summed first. Divides the size of the axis; 0 means that the axis has no blocks.
  int block = 0;
  std::shared_ptr<const void> hold{};  // while this pointer exists, moving the World throws

  int size() const noexcept { return static_cast<int>(ranks.size()); }
};

struct MeshShape {
  int replicate = 1;
  int shard = 1;
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

// The name of an axis and its number of ranks.
struct AxisSpec {
  std::string name;
  int size = 1;
  friend bool operator==(const AxisSpec&, const AxisSpec&) = default;
};

// Parses "2x4" as replicate x shard. Throws Error(invalid_argument), which quotes the text, when
// the text has another form.
ATOLL_API MeshShape parse_mesh(std::string_view text);

// Returns where the ranks of the job run. Each rank reports which GPUs and cores its environment
// allows (CUDA_VISIBLE_DEVICES, control groups, binding). Collective.
ATOLL_API std::vector<RankSite> locate_ranks(const Topology& topology, World& world);

// A mesh refers to the World and must not outlive it. All ranks must construct equal meshes: the
// functions that make a mesh are collective, and if the arguments differ, all ranks throw the same
// Error(mismatch). The topology is not compared. Copies share their data.
//
//   auto mesh = Mesh::make(world, {{"replicate", 2}, {"shard", 4}, {"tensor", 2}});
//   auto tensor = Communicator::open(mesh.axis("tensor"));
//   fsdp::Engine engine(mesh);  // uses the axes "replicate" and "shard"; the caller uses "tensor"
class ATOLL_API Mesh {
 public:
  // Plans a mesh with plan_mesh(). It shards inside islands or hosts, whichever are larger, and
  // replicates across them, so that gathers use the fastest links. With `options.tensor` above 1
  // the mesh has a third axis, "tensor", of neighbouring ranks inside one island. If
  // `options.emulated_islands` is 0, Config::islands applies. All ranks must pass equal options;
  // otherwise all throw Error(mismatch), which names the option. Collective. Throws the errors of
  // plan_mesh().
  static Mesh plan(const Topology& topology, World& world, MeshPlanOptions options = {});
  // Makes the mesh of an existing plan: replicate x shard, and with a tensor axis replicate x shard
  // x tensor. Collective. All ranks throw the same error: Error(mismatch) if ranks passed different
  // plans, and Error(invalid_argument) unless the sizes multiply to the size of the World and the
  // plan's order holds every rank once.
  static Mesh from_plan(World& world, MeshPlan plan);
  // Makes a mesh of the given shape with the ranks in row-major order, so neighbouring ranks are in
  // the same shard group. Collective. All ranks throw the same error: Error(mismatch) if ranks
  // passed different shapes, and Error(invalid_argument) unless replicate * shard is the size of
  // the World. The overload with a topology reports in findings() when a shard group of the mesh
  // spans several islands.
  static Mesh make(World& world, MeshShape shape);
  static Mesh make(World& world, MeshShape shape, const Topology& topology);
  // Makes a mesh of named axes, outermost first, with the ranks in row-major order: the groups of
  // the last axis are neighbouring ranks. All ranks compare the axes, and all throw the same error:
  // Error(mismatch) if ranks passed different axes, or Error(invalid_argument) if the product of
  // the sizes is not the size of the World, for a size below 1, and for a name that is empty, used
  // twice or "world". Collective.
  //
  // With a topology, Axis::rate is known for each axis. If the mesh has an axis "shard", findings()
  // reports groups of this axis and of the axes after it that span several islands.
  static Mesh make(World& world, std::vector<AxisSpec> axes);
  static Mesh make(World& world, std::vector<AxisSpec> axes, const Topology& topology);

  // Returns the part of the mesh along the named axes that contains this rank: the ranks that
  // differ from this rank only in these coordinates. The sub-mesh has the axes in the given order,
  // and its axis "world" holds all its ranks. world() remains the World of all ranks. Communicators
  // and engines run on a sub-mesh as on a mesh, and ranks of other sub-meshes need not take part.
  // Throws Error(invalid_argument) if a name is unknown or occurs twice, and if there is no name.
  // Not collective.
  Mesh sub(const std::vector<std::string>& names) const;

  // Returns the axes, outermost first, without "world".
  const std::vector<AxisSpec>& axes() const noexcept { return specs_; }
  // Returns the sizes of the axes "replicate" and "shard"; 1 for an axis that the mesh lacks.
  MeshShape shape() const noexcept;
  bool has_axis(std::string_view name) const noexcept;
  // Returns the axis with this name. The name "world" means an axis of all ranks in mesh order,
  // with the last axis of the mesh innermost. For another name throws Error(invalid_argument),
  // which lists the axes.
  const Axis& axis(std::string_view name) const;
  World& world() const;  // throws Error(invalid_argument) if the World has been destroyed
  // Returns one sentence that explains why the planner chose this mesh.
  const std::string& reason() const noexcept;
  const std::vector<Finding>& findings() const noexcept;
  // Returns the axes as text: "2x4" for replicate x shard, and otherwise such as
  // "replicate 2 x shard 4 x tensor 2".
  std::string to_string() const;

 private:
  // The axes and the order of all ranks, which a mesh and its sub-meshes share.
  struct ATOLL_LOCAL Layout;
  ATOLL_LOCAL Mesh(World& world, std::shared_ptr<const Layout> layout,
                   const std::vector<std::size_t>& dims);
  ATOLL_LOCAL static Layout layout_of(const World& world, MeshPlan plan);
  ATOLL_LOCAL static Layout requested(World& world, std::vector<AxisSpec> axes,
                                      const Topology* topology = nullptr);
  ATOLL_LOCAL static Mesh whole(World& world, Layout layout);

  World* world_;
  std::shared_ptr<const Layout> layout_;
  std::vector<AxisSpec> specs_;
  std::vector<Axis> axes_;  // one for each of specs_, then "world"
};

}  // namespace atoll_v1::atoll

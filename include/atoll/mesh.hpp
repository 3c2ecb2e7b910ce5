// A mesh arranges the ranks of a job in named axes: `replicate` x `shard`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/mesh_plan.hpp"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// One axis of a mesh: the ranks that differ from this rank only in one coordinate. A communicator
// is opened over an axis.
struct Axis {
  World* world = nullptr;
  std::string name;        // name of the axis: "shard", "replicate" or "world"
  std::vector<int> ranks;  // ranks of the World, ordered by their position on this axis
  int index = 0;           // position of this rank in `ranks`
  GroupRate rate{};        // rate of the slowest group of this axis; unknown without a topology
  LevelRates levels{};     // rates of the axis's slowest group inside hosts and across hosts
  // Number of neighbouring ranks in a block. Under Config::deterministic the ranks of a block are
  // summed first. Divides the size of the axis; 0 means that the axis has no blocks.
  int block = 0;
  std::shared_ptr<const void> hold{};  // forbids moving the World while the axis exists

  int size() const noexcept { return static_cast<int>(ranks.size()); }
};

struct MeshShape {
  int replicate = 1;
  int shard = 1;
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

// Parses "2x4" as replicate x shard. Throws Error(invalid_argument), which quotes the text, when
// the text has another form.
ATOLL_API MeshShape parse_mesh(std::string_view text);

// Returns where the ranks of the job run. Each rank reports which GPUs and cores its environment
// allows (CUDA_VISIBLE_DEVICES, control groups, binding). Collective.
ATOLL_API std::vector<RankSite> locate_ranks(const Topology& topology, World& world);

// A mesh refers to the World and must not outlive it. All ranks must construct equal meshes.
class ATOLL_API Mesh {
 public:
  // Plans a mesh with plan_mesh(). It shards inside islands or hosts, whichever are larger, and
  // replicates across them, so that gathers use the fastest links. Collective.
  static Mesh plan(const Topology& topology, World& world);
  // Makes the mesh of an existing plan. Throws Error(unsupported) for a plan with an inner axis.
  static Mesh from_plan(World& world, MeshPlan plan);
  // Makes a mesh of the given shape with the ranks in row-major order, so neighbouring ranks are in
  // the same shard group. Throws Error(invalid_argument) unless replicate * shard is the size of
  // the World. The overload with a topology is collective, and reports in findings() when a shard
  // group of the mesh spans several islands.
  static Mesh make(World& world, MeshShape shape);
  static Mesh make(World& world, MeshShape shape, const Topology& topology);

  MeshShape shape() const noexcept { return shape_; }
  // Returns the axis "shard", "replicate" or "world" (all ranks in mesh order, shard innermost).
  // Throws Error(invalid_argument) for another name.
  const Axis& axis(std::string_view name) const;
  World& world() const noexcept { return *world_; }
  // Returns one sentence that explains why the planner chose this mesh.
  const std::string& reason() const noexcept { return reason_; }
  const std::vector<Finding>& findings() const noexcept { return findings_; }
  // Returns the shape as text, such as "2x4".
  std::string to_string() const;

 private:
  ATOLL_LOCAL Mesh(World& world, MeshShape shape, const std::vector<int>& order);
  ATOLL_LOCAL void set_rates(const MeshRates& rates);

  World* world_;
  MeshShape shape_;
  std::vector<Axis> axes_;
  std::string reason_;
  std::vector<Finding> findings_;
};

}  // namespace atoll_v1::atoll

// Named axes over the ranks of a job: `replicate` x `shard`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atoll/mesh_plan.hpp"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// The ranks that differ from this rank in one coordinate only: a group to communicate in.
struct Axis {
  World* world = nullptr;
  std::string name;        // "shard", "replicate", "world"
  std::vector<int> ranks;  // world ranks, in the order of the coordinate
  int index = 0;           // of this rank in `ranks`
  GroupRate rate{};        // of the axis' slowest group; unknown without a topology
  LevelRates levels{};     // of the same
  // Neighbours of `ranks` that are one group of the planned mesh, and whose sums come first under
  // Config::deterministic; 0: no such groups. It divides the size.
  int block = 0;

  int size() const noexcept { return static_cast<int>(ranks.size()); }
};

struct MeshShape {
  int replicate = 1;
  int shard = 1;
  friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

// "2x4": replicate x shard. Throws Error(invalid_argument) that quotes the text.
MeshShape parse_mesh(std::string_view text);

// Where the ranks of the job run: each rank says which GPUs and cores its environment leaves it
// (CUDA_VISIBLE_DEVICES, control groups, binding). Collective.
std::vector<RankSite> locate_ranks(const Topology& topology, World& world);

// A mesh refers to the World and must not outlive it. Making one is collective in this sense only:
// all ranks must make the same one.
class Mesh {
 public:
  // Shards over the larger of island and host, replicates across: the mesh that keeps gathers on
  // the fastest links. The planning is topology's plan_mesh(). Collective.
  static Mesh plan(const Topology& topology, World& world);
  // A plan that was made before. Error(unsupported) for one with an inner axis.
  static Mesh from_plan(World& world, MeshPlan plan);
  // A mesh made by hand, ranks in row-major order (shard is the inner axis).
  // Error(invalid_argument) unless replicate * shard is the size of the world. With a topology, a
  // mesh that crosses an island is accepted, with a finding in findings(); that form is collective.
  static Mesh make(World& world, MeshShape shape);
  static Mesh make(World& world, MeshShape shape, const Topology& topology);

  MeshShape shape() const noexcept { return shape_; }
  // "shard", "replicate", or "world" (all ranks in mesh order, shard innermost).
  // Error(invalid_argument) for another name.
  const Axis& axis(std::string_view name) const;
  World& world() const noexcept { return *world_; }
  // Why this mesh, in a sentence.
  const std::string& reason() const noexcept { return reason_; }
  const std::vector<Finding>& findings() const noexcept { return findings_; }
  // "2x4"
  std::string to_string() const;

 private:
  Mesh(World& world, MeshShape shape, const std::vector<int>& order);
  void set_rates(const MeshRates& rates);

  World* world_;
  MeshShape shape_;
  std::vector<Axis> axes_;
  std::string reason_;
  std::vector<Finding> findings_;
};

}  // namespace atoll_v1::atoll

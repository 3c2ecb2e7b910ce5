// The ranks of a mesh, located on the machine: what planning and checking both need.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "atoll/mesh_plan.hpp"

namespace atoll_v1::atoll {

inline std::size_t at_index(int number) { return static_cast<std::size_t>(number); }

struct MeshSite {
  int host = 0;     // index into MeshSites::hosts
  int island = -1;  // index into MeshSites::islands; -1: the rank has no GPU
  int gpu = -1;     // index into Topology::gpus; -1: none
  int number = -1;  // TopologyGpu::index
  int rail = -1;    // the first rail that its GPU is on; -1: only assumed, or none
  int block = -1;   // number of the emulated island; -1: none are emulated
};

// A set of ranks between which nothing is slower than it must be: an island, or the part of a host
// that lies in no island of several GPUs.
struct Neighbourhood {
  enum class Kind {
    emulated,
    island,
    host
  };
  Kind kind = Kind::host;
  int number = 0;
  friend bool operator==(const Neighbourhood&, const Neighbourhood&) = default;
  friend bool operator<(const Neighbourhood& a, const Neighbourhood& b) {
    return std::tie(a.kind, a.number) < std::tie(b.kind, b.number);
  }
};

struct MeshSites {
  // Ids, in the topology's order; those that it does not list follow, by id. No order that a
  // launcher chose, so that a mesh does not depend on one.
  std::vector<std::string> hosts;
  std::vector<Island> islands;
  std::vector<MeshSite> ranks;

  const MeshSite& at(int rank) const { return ranks[at_index(rank)]; }
  // The fast neighbourhood of a rank: a known island of several GPUs where it is in one.
  Neighbourhood nearest(int rank) const;
  // The larger of island and host: the island where it reaches beyond the host.
  Neighbourhood widest(int rank) const;
  // Its GPU is an island by itself, joined to no other.
  bool is_alone(int rank) const;
  // Sorts the ranks of a neighbourhood so that equal positions of two of them share a rail.
  std::tuple<int, int, unsigned, int, int, int> position(int rank) const;
};

// Throws Error(invalid_argument); see plan_mesh().
MeshSites locate(const Topology& topology, const std::vector<RankSite>& ranks,
                 const MeshPlanOptions& options);

}  // namespace atoll_v1::atoll

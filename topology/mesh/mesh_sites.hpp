// Locates the ranks of a mesh on the machine, for planning and checking.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "atoll/mesh_plan.hpp"

namespace atoll_v1::atoll {

inline std::size_t at_index(int number) { return static_cast<std::size_t>(number); }

struct MeshSite {
  int host = 0;     // index into MeshSites::hosts
  int island = -1;  // index into MeshSites::islands; -1 for a rank without a GPU
  int gpu = -1;     // index into Topology::gpus; -1 for a rank without a GPU
  int number = -1;  // TopologyGpu::index
  int rail = -1;    // first rail of its GPU; -1 if no leaf switch is known
  int block = -1;   // number of its emulated island; -1 without emulation
};

// Part of the machine that connects its ranks well: an emulated island, an island or a host. As the
// nearest neighbourhood of ranks, a host holds only ranks outside known islands of several GPUs.
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
  // Host ids in the topology's order, then unlisted hosts sorted by id. The order does not depend
  // on the launcher, and neither does the mesh.
  std::vector<std::string> hosts;
  std::vector<Island> islands;
  std::vector<MeshSite> ranks;

  const MeshSite& at(int rank) const { return ranks[at_index(rank)]; }
  // The nearest neighbourhood of a rank: its island if that is known and has several GPUs, else its
  // host.
  Neighbourhood nearest(int rank) const;
  // The larger of island and host: the island if it spans hosts, else the host.
  Neighbourhood widest(int rank) const;
  // Whether the rank's GPU is known to have no links, so that its island is this GPU alone.
  bool is_alone(int rank) const;
  // Sort key for the ranks of a neighbourhood. In two neighbourhoods, ranks in equal positions of
  // the sorted order share a rail.
  std::tuple<int, int, unsigned, int, int, int> position(int rank) const;
};

// Throws Error(invalid_argument) as plan_mesh() does.
MeshSites locate(const Topology& topology, const std::vector<RankSite>& ranks,
                 const MeshPlanOptions& options);

}  // namespace atoll_v1::atoll

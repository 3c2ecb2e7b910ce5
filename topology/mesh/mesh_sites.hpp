// Locates the ranks of a mesh on the machine and groups them, for planning and checking.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "atoll/mesh_plan.hpp"

namespace atoll_v1::atoll {

// Throws Error(invalid_argument) with the formatted text.
template <class... Values>
[[noreturn]] void refuse(fmt::format_string<Values...> format, Values&&... values) {
  throw Error(ErrorCode::invalid_argument, fmt::format(format, std::forward<Values>(values)...));
}

inline std::size_t at_index(int number) { return static_cast<std::size_t>(number); }

struct MeshSite {
  int host = 0;     // index into MeshSites::hosts
  int island = -1;  // index into MeshSites::islands; -1 for a rank without a GPU
  int gpu = -1;     // index into Topology::gpus; -1 for a rank without a GPU
  int number = -1;  // number of the GPU (TopologyGpu::index)
  int rail = -1;    // first rail of the GPU; -1 if no leaf switch is known
  int block = -1;   // number of the emulated island; -1 without emulation
};

// Part of the machine that connects its ranks well: an emulated island, an island or a host. A host
// is the nearest neighbourhood only of ranks that are in no known island of several GPUs.
struct Neighbourhood {
  enum class Kind {
    emulated,
    island,
    host
  };
  Kind kind = Kind::host;
  int number = 0;
  friend auto operator<=>(const Neighbourhood&, const Neighbourhood&) = default;
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
  // True if the rank's GPU is known to have no links, so that its island is this GPU alone.
  bool is_alone(int rank) const;
  // Sort key for the ranks of a neighbourhood. In two neighbourhoods, ranks in equal positions of
  // the sorted order share a rail.
  std::tuple<int, int, unsigned, int, int, int> position(int rank) const;
};

// Finds host, island, GPU and rail of each rank. Throws Error(invalid_argument) if there are no
// ranks, if they cannot form the emulated islands, or if the topology lacks one of their GPUs.
MeshSites locate(const Topology& topology, const std::vector<RankSite>& ranks,
                 const MeshPlanOptions& options);

// --- groups of ranks by neighbourhood, in the order of the machine ---

struct RankGroup {
  Neighbourhood where;
  std::vector<int> ranks;  // sorted by MeshSites::position()
  int size() const { return static_cast<int>(ranks.size()); }
};

// Every rank is in one near group (its nearest neighbourhood) and in one wide group (the larger of
// island and host). Each near group is part of one wide group.
struct RankGroups {
  std::vector<RankGroup> near;  // sorted like the wide groups that contain them
  std::vector<RankGroup> wide;
  std::vector<int> near_of, wide_of;  // for each rank, the index of its group
};

RankGroups group_ranks(const MeshSites& sites);

// True if all groups have the same size.
bool alike(const std::vector<RankGroup>& groups);

// Describes sizes, such as "2 of 8, 1 of 7": two groups of 8 ranks and one group of 7.
std::string sizes_text(const std::vector<RankGroup>& groups);

// Name for the neighbourhood of a group: "NVLink island", "host", ...
std::string noun(const MeshSites& sites, const RankGroup& group);
// Returns the name of the neighbourhoods if all have the same name, otherwise "island or host".
std::string shared_noun(const MeshSites& sites, const std::vector<RankGroup>& groups);
// Adds "a" or "an": "an NVLink island".
std::string with_article(const std::string& noun);
bool all_have_gpus(const MeshSites& sites);

// --- groups of ranks by axis ---

inline int rank_at(const MeshPlan& mesh, int r, int s, int i) {
  return mesh.order[at_index((r * mesh.shard + s) * mesh.tensor + i)];
}

// Calls visit(ranks) for every group of the shard axis, row by row.
template <class Visit>
void each_shard_group(const MeshPlan& mesh, const Visit& visit) {
  std::vector<int> ranks(at_index(mesh.shard));
  for (int r = 0; r < mesh.replicate; ++r)
    for (int i = 0; i < mesh.tensor; ++i) {
      for (int s = 0; s < mesh.shard; ++s) ranks[at_index(s)] = rank_at(mesh, r, s, i);
      visit(ranks);
    }
}

// Calls visit(ranks) for every group of the replicate axis.
template <class Visit>
void each_replicate_group(const MeshPlan& mesh, const Visit& visit) {
  std::vector<int> ranks(at_index(mesh.replicate));
  for (int s = 0; s < mesh.shard; ++s)
    for (int i = 0; i < mesh.tensor; ++i) {
      for (int r = 0; r < mesh.replicate; ++r) ranks[at_index(r)] = rank_at(mesh, r, s, i);
      visit(ranks);
    }
}

}  // namespace atoll_v1::atoll

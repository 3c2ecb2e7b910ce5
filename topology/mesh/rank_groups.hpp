// The ranks of a mesh by neighbourhood, in the order of the machine.
#pragma once

#include <vector>

#include "mesh/mesh_sites.hpp"

namespace atoll_v1::atoll {

struct RankGroup {
  Neighbourhood where;
  std::vector<int> ranks;  // by place
  int size() const { return static_cast<int>(ranks.size()); }
};

// Every rank is in one near and in one wide group; a near group lies in one wide group.
struct RankGroups {
  std::vector<RankGroup> near;  // the near groups of a wide one follow each other, in its order
  std::vector<RankGroup> wide;
  std::vector<int> near_of, wide_of;  // by rank: which group
};

RankGroups group_ranks(const MeshSites& sites);

// All of one size.
bool alike(const std::vector<RankGroup>& groups);

// "2 of 8, 1 of 7": how many groups have how many ranks.
std::string sizes_text(const std::vector<RankGroup>& groups);

// What the ranks of a group have between them: "NVLink island", "host", ...
std::string noun(const MeshSites& sites, const RankGroup& group);
// The noun that holds for all groups.
std::string shared_noun(const MeshSites& sites, const std::vector<RankGroup>& groups);
// "an NVLink island"
std::string with_article(const std::string& noun);
bool all_have_gpus(const MeshSites& sites);

}  // namespace atoll_v1::atoll

// Groups of ranks by neighbourhood, in the order of the machine.
#pragma once

#include <vector>

#include "mesh/mesh_sites.hpp"

namespace atoll_v1::atoll {

struct RankGroup {
  Neighbourhood where;
  std::vector<int> ranks;  // sorted by position
  int size() const { return static_cast<int>(ranks.size()); }
};

// Every rank is in one near group and one wide group. Each near group is part of one wide group.
struct RankGroups {
  std::vector<RankGroup> near;  // sorted by wide group
  std::vector<RankGroup> wide;
  std::vector<int> near_of, wide_of;  // group index by rank
};

RankGroups group_ranks(const MeshSites& sites);

// Whether all groups have the same size.
bool alike(const std::vector<RankGroup>& groups);

// Describes sizes, such as "2 of 8, 1 of 7": two groups of 8 ranks and one group of 7.
std::string sizes_text(const std::vector<RankGroup>& groups);

// Name for the neighbourhood of a group: "NVLink island", "host", ...
std::string noun(const MeshSites& sites, const RankGroup& group);
// The name if it is equal for all groups, else "island or host".
std::string shared_noun(const MeshSites& sites, const std::vector<RankGroup>& groups);
// Adds an article: "an NVLink island".
std::string with_article(const std::string& noun);
bool all_have_gpus(const MeshSites& sites);

}  // namespace atoll_v1::atoll

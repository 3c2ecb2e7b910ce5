// The shard axes that a job whose neighbourhoods are alike can have. Candidates nest: GPUs without
// links, k of a host; an island; k islands of a host; a host; k hosts or islands that reach beyond
// one. k divides their number, so that every rank is used.
#pragma once

#include <string>
#include <vector>

#include "mesh/rank_groups.hpp"

namespace atoll_v1::atoll {

// `count` units side by side, of `unit` ranks each.
struct Candidate {
  int unit = 1;
  int count = 1;
  int units = 1;     // in the job, where `count` of them may be taken
  std::string noun;  // of a unit
  int ranks() const { return unit * count; }
};

// All near groups have one size, and all wide ones.
bool is_even(const RankGroups& groups);

// The larger of island and host.
Candidate widest_candidate(const MeshSites& sites, const RankGroups& groups);

// By size. Each is a multiple of `inner` ranks.
std::vector<Candidate> candidates(const MeshSites& sites, const RankGroups& groups, int inner);

}  // namespace atoll_v1::atoll

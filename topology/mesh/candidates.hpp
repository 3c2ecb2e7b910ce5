// Candidates for the shard axis of a job whose islands and hosts are equal. Each candidate contains
// the smaller ones: k GPUs of a host without links; an island; k islands of a host; a host; k
// hosts, or k islands that span hosts. k divides the number of units, so that the mesh uses every
// rank.
#pragma once

#include <string>
#include <vector>

#include "mesh/rank_groups.hpp"

namespace atoll_v1::atoll {

// A candidate is `count` neighbouring units of `unit` ranks each.
struct Candidate {
  int unit = 1;
  int count = 1;
  int units = 1;     // units from which `count` are chosen
  std::string noun;  // name of a unit: "host", "NVLink island"
  int ranks() const { return unit * count; }
};

// Whether all near groups have one size, and all wide groups have one size.
bool is_even(const RankGroups& groups);

// The larger of island and host.
Candidate widest_candidate(const MeshSites& sites, const RankGroups& groups);

// Returns the candidates in ascending size. Each is a multiple of `inner` ranks.
std::vector<Candidate> candidates(const MeshSites& sites, const RankGroups& groups, int inner);

}  // namespace atoll_v1::atoll

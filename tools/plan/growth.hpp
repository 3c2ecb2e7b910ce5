// How a job grows over the number of hosts.
#pragma once

#include <string>
#include <vector>

#include "plan/search.hpp"

namespace plan {

// The best settings on several numbers of hosts, in ascending order.
struct Scaling {
  std::vector<int> hosts{};
  std::vector<Candidate> best{};

  // The fewest hosts on which the job fits, and the tokens/s of one of them; 0 if it fits on none.
  int fewest_hosts() const;
  double tokens_per_s_of_host() const;
};

// Searches on 1, 2, 4, ... hosts, up to those of `best`, which is the result of a search on all of
// them. Numbers of hosts whose ranks do not divide the global batch are left out. If the space has
// a mesh, its shard groups keep their size where they fit into the ranks.
Scaling scaling_of(const Candidate& best, const SearchSpace& space);

// A line for each number of hosts: tokens/s, the share of linear growth, and the settings. The last
// line names the number of hosts beyond which a further host adds less than half of the tokens/s
// that a host gives on the fewest hosts on which the job fits. Numbers of hosts on which it does
// not fit are marked and left out of that.
std::string growth(const Scaling& scaling);

}  // namespace plan

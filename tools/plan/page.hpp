// A page with the ranked candidates, one step of the best, its memory, and its growth over hosts.
#pragma once

#include <string>
#include <vector>

#include "plan/search.hpp"

namespace plan {

// The predictions of one job on several numbers of hosts.
struct Scaling {
  std::vector<int> hosts{};
  std::vector<Prediction> predictions{};
};

// Predicts the job of the best candidate on 1, 2, 4, ... hosts, up to its own number. A hybrid
// strategy keeps the size of its shard groups and falls back to full_shard on one host.
Scaling scaling_of(const Job& job);

// Returns one HTML document that needs no other file. `found` has at least one candidate.
std::string page(const std::vector<Candidate>& found, const Scaling& scaling);

std::string_view name(train::Recompute recompute);

}  // namespace plan

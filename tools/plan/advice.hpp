// Sentences about a search: why the best candidate wins, what makes a job fit, and how many hosts are
// worth their price.
#pragma once

#include <string>
#include <vector>

#include "plan/page.hpp"
#include "plan/search.hpp"

namespace plan {

// Why the first candidate is faster than the best one of another strategy. "" if there is no other.
std::string reason(const std::vector<Candidate>& found);

// Returns changes that save memory, for a job that does not fit. Each line says how much memory the
// change saves and how much time it costs; the cheapest comes first. A line marks a change that
// alone makes the job fit.
std::vector<std::string> savings(const Job& job, const Prediction& prediction);

// The efficiency of each number of hosts relative to the first, and after how many hosts more are
// wasted: where all further ones together add less than a fifth. Hosts on which the job does not fit
// are marked, and do not count.
std::string growth(const Scaling& scaling);

}  // namespace plan

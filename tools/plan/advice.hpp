// Sentences about a search: why the best candidate wins, and what makes a job fit.
#pragma once

#include <string>
#include <vector>

#include "plan/search.hpp"

namespace plan {

// Why the first candidate is faster than the best one of another strategy. "" if there is no other.
std::string reason(const std::vector<Candidate>& found);

// Returns changes that save memory, for a job that does not fit. Each line says how much memory the
// change saves and how much time it costs; the cheapest comes first. A line marks a change that
// alone makes the job fit.
std::vector<std::string> savings(const Job& job, const Prediction& prediction);

}  // namespace plan

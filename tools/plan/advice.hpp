// Sentences about a search: why the best candidate wins, and what makes a job fit.
#pragma once

#include <string>
#include <vector>

#include "plan/search.hpp"

namespace plan {

// Why the first candidate is faster than the best one of another strategy. "" if there is no other.
std::string reason(const std::vector<Candidate>& found);

// Returns lines for a job that does not fit: changes that save memory, each with what it saves and
// what it costs, the cheapest first. If no single change makes the job fit, the last line has the
// changes that do so together, or the number of hosts on which the job fits.
std::vector<std::string> savings(const Job& job, const Prediction& prediction);

// Tells that the fastest candidate needs nearly all memory, and which needs less; "" otherwise.
std::string tight(const std::vector<Candidate>& found);

}  // namespace plan

// A page with the ranked candidates, one step of the best, its memory, and its growth over hosts.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/search.hpp"

namespace plan {

// Returns one HTML document that needs no other file. `found` has at least one candidate; `remarks`
// are sentences without a full stop, shown below the figures.
std::string page(const std::vector<Candidate>& found, const Scaling& scaling,
                 const std::vector<std::string>& remarks);

// A candidate for --json and for the page, where `first` is the best one.
nlohmann::json entry_of(const Candidate& candidate, const Candidate& first);

// A part of the memory of a rank.
struct MemoryPart {
  const char* key;  // as in fsdp::MemoryPlan
  const char* name;
  std::uint64_t bytes;
};
std::vector<MemoryPart> memory_parts(const Job& job, const Prediction& prediction);

}  // namespace plan

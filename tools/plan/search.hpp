// Tries the settings of a job and ranks them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/simulate.hpp"

namespace plan {

struct Candidate {
  Job job{};
  Prediction prediction{};
};

struct SearchSpace {
  std::vector<atoll::fsdp::Strategy> strategies{};
  std::vector<atoll::MeshShape> meshes{};  // empty: meshes_of()
  std::vector<train::Recompute> recomputes{};
  std::vector<std::int64_t> micro_batches{};  // rows of a pass
  std::vector<int> prefetches{};              // units gathered ahead of compute; empty: the job's
  std::int64_t global_batch = 0;              // rows of a step over all ranks; 0: one pass each
};

// Returns the candidates. Those that fit in memory come first, sorted by tokens/s; the others follow,
// sorted by memory.
std::vector<Candidate> search(const Job& base, const SearchSpace& space);

// The meshes that a strategy can use: shards inside a host, over several hosts, or over all ranks.
std::vector<atoll::MeshShape> meshes_of(const Job& job);

}  // namespace plan

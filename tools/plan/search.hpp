// Tries the settings of a job and ranks them, also on several numbers of hosts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/simulate.hpp"

namespace plan {

struct Candidate {
  Job job{};
  Prediction prediction{};
};

struct SearchSpace {
  std::vector<atoll::fsdp::Strategy> strategies{};
  std::vector<atoll::MeshShape> meshes{};  // empty: every mesh of meshes_of()
  std::vector<train::Recompute> recomputes{};
  std::vector<std::int64_t> micro_batches{};  // rows of a micro batch
  std::vector<int> prefetches{};              // units gathered ahead of compute; empty: the job's
  std::vector<atoll::DType> dtypes{};  // types of parameters and activations; empty: the job's
  bool reduces_in_dtype = false;       // gradients are reduced in the type of the parameters
  std::int64_t global_batch = 0;       // rows of a step over all ranks; 0: the job's micro batches
};

// The memory of a rank in bytes, with the memory of its process if that was measured.
double all_bytes(const Candidate& candidate);

// Whether a candidate is so close to the first, within 3 %, that the prediction does not tell them
// apart.
bool is_tied(const Candidate& candidate, const Candidate& first);

// Returns the candidates. Those that fit in memory come first, sorted by tokens/s; the others
// follow, sorted by memory.
std::vector<Candidate> search(const Job& base, const SearchSpace& space);

// The meshes that a strategy can use: shards over half of a host, a host, several hosts, or all
// ranks.
std::vector<atoll::MeshShape> meshes_of(const Job& job);

std::string_view name(train::Recompute recompute);

// Why a GPU has more tokens/s with `best` than with `other`.
const char* cause(const Candidate& best, const Candidate& other);

// The best settings on several numbers of hosts, in ascending order.
struct Scaling {
  std::vector<int> hosts{};
  std::vector<Candidate> best{};
};

// Searches on 1, 2, 4, ... hosts, up to the number of hosts of `best`, which is the result of a
// search on all hosts. Numbers of hosts whose ranks do not divide the global batch are left out. If
// the space has a mesh, its shard groups keep their size where they fit into the ranks.
Scaling scaling_of(const Candidate& best, const SearchSpace& space);

// Rows of a step over all ranks.
std::int64_t rows_of(const Job& job);

// A line that says whether the global batch grows or has `global_batch` rows (0: it grows), and one
// for each number of hosts: tokens/s, the share of linear growth, the settings, and the cause of a
// share above 100 %. Another line names the numbers of hosts on which the job does not
// fit. The last line names the number of hosts beyond which each further host adds less than half
// of what a host adds in the smallest job that fits, or says that none is.
std::string growth(const Scaling& scaling, std::int64_t global_batch);

}  // namespace plan

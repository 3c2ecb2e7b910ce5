#include "plan/search.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace plan {
namespace {

namespace fsdp = atoll::fsdp;

bool uses_replicas(fsdp::Strategy strategy) {
  return strategy == fsdp::Strategy::hybrid_shard || strategy == fsdp::Strategy::hybrid_shard_grad;
}

// Returns how many micro batches of `rows` rows a rank has for the global batch; nothing if they do
// not divide it.
std::optional<int> passes(const Job& job, std::int64_t global_batch, std::int64_t rows) {
  if (global_batch <= 0) return job.micro_batches;
  const std::int64_t once = rows * job.ranks();
  if (global_batch % once != 0) return std::nullopt;
  return micro_batches_of(global_batch, once);
}

bool better(const Candidate& a, const Candidate& b) {
  if (a.prediction.fits != b.prediction.fits) return a.prediction.fits;
  if (!a.prediction.fits) return a.prediction.bytes < b.prediction.bytes;
  return a.prediction.tokens_per_s > b.prediction.tokens_per_s;
}

// Adds a candidate for each number of units that are gathered ahead.
void add_prefetches(Job job, const SearchSpace& space, std::vector<Candidate>& found) {
  const bool gathers =
      job.strategy != fsdp::Strategy::no_shard && job.strategy != fsdp::Strategy::shard_optimizer;
  if (space.prefetches.empty() || !gathers) {
    found.push_back({job, simulate(job)});
    return;
  }
  for (const int prefetch : space.prefetches) {
    job.prefetch = prefetch;
    found.push_back({job, simulate(job)});
  }
}

}  // namespace

std::vector<atoll::MeshShape> meshes_of(const Job& job) {
  const int ranks = job.ranks(), host = job.cluster.ranks_per_host;
  if (!uses_replicas(job.strategy)) return {{1, ranks}};
  std::vector<atoll::MeshShape> meshes;
  if (host % 2 == 0 && host > 2) meshes.push_back({2 * ranks / host, host / 2});
  // On one host, a hybrid strategy over a whole host is the same as one over all ranks.
  for (int hosts = 1; hosts < job.cluster.hosts; ++hosts) {
    if (job.cluster.hosts % hosts == 0) meshes.push_back({job.cluster.hosts / hosts, hosts * host});
  }
  return meshes;
}

double all_bytes(const Candidate& candidate) {
  return static_cast<double>(candidate.prediction.bytes + candidate.job.cluster.process_bytes);
}

bool is_tied(const Candidate& candidate, const Candidate& first) {
  return &candidate != &first && first.prediction.fits && candidate.prediction.fits &&
         candidate.prediction.tokens_per_s > 0.97 * first.prediction.tokens_per_s;
}

std::string_view name(train::Recompute recompute) {
  switch (recompute) {
    case train::Recompute::none:
      return "none";
    case train::Recompute::selective:
      return "selective";
    case train::Recompute::full:
      break;
  }
  return "full";
}

std::vector<Candidate> search(const Job& base, const SearchSpace& space) {
  std::vector<Candidate> found;
  if (!space.dtypes.empty()) {
    SearchSpace one = space;
    one.dtypes.clear();
    for (const atoll::DType dtype : space.dtypes) {
      Job job = base;
      job.dtype = dtype;
      if (space.reduces_in_dtype) job.reduce_dtype = dtype;
      for (Candidate& candidate : search(job, one)) found.push_back(std::move(candidate));
    }
    std::ranges::stable_sort(found, better);
    return found;
  }
  for (const fsdp::Strategy strategy : space.strategies) {
    Job job = base;
    job.strategy = strategy;
    const auto meshes = space.meshes.empty() ? meshes_of(job) : space.meshes;
    for (const atoll::MeshShape& mesh : meshes) {
      job.mesh = mesh;
      for (const train::Recompute recompute : space.recomputes) {
        job.recompute = recompute;
        for (const std::int64_t rows : space.micro_batches) {
          job.micro_batch = rows;
          const auto times = passes(job, space.global_batch, rows);
          if (!times) continue;
          job.micro_batches = *times;
          add_prefetches(job, space, found);
        }
      }
    }
  }
  std::ranges::stable_sort(found, better);
  return found;
}

}  // namespace plan

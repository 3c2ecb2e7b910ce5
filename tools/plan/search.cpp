#include "plan/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "fail.hpp"
#include "loop/processors.hpp"
#include "report/phase.hpp"

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

// Adds a job for each number of units that are gathered ahead.
void add_prefetches(Job job, const SearchSpace& space, std::vector<Job>& jobs) {
  const bool gathers =
      job.strategy != fsdp::Strategy::no_shard && job.strategy != fsdp::Strategy::shard_optimizer;
  if (space.prefetches.empty() || !gathers) return jobs.push_back(job);
  for (const int prefetch : space.prefetches) {
    job.prefetch = prefetch;
    jobs.push_back(job);
  }
}

// Simulates jobs on all processors. A simulation shares nothing with another.
std::vector<Candidate> simulate_all(const std::vector<Job>& jobs) {
  std::vector<Candidate> found(jobs.size());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr problem;  // the error of the job that comes first in `jobs`
  std::size_t first = jobs.size();
  const int hosts = jobs.empty() ? 0 : jobs.front().cluster.hosts;
  train::Phase phase(fmt::format("predicting settings on {} host(s)", hosts));
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      try {
        found[i] = {jobs[i], simulate(jobs[i])};
        phase.progress(static_cast<std::int64_t>(i + 1), static_cast<std::int64_t>(jobs.size()));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < first) problem = std::current_exception();
        first = std::min(first, i);
        next = jobs.size();
      }
    }
  };
  const train::Processors here = train::read_processors();
  const int usable = train::share_of(std::span(&here, 1), 0).threads();
  const auto most = static_cast<std::size_t>(std::min(usable, 16));
  std::vector<std::jthread> threads;
  try {
    for (std::size_t t = 1; t < std::min(most, jobs.size()); ++t) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // The threads that did start do the work.
  }
  work();
  threads.clear();
  if (problem) std::rethrow_exception(problem);
  return found;
}

// The mesh that a strategy uses: only hybrid strategies have more than one level.
atoll::MeshShape used_mesh(const Job& job, atoll::MeshShape mesh) {
  train::require(mesh.replicate * mesh.shard == job.ranks(),
                 "mesh {} x {} does not have the {} ranks of the job", mesh.replicate, mesh.shard,
                 job.ranks());
  return uses_replicas(job.strategy) ? mesh : atoll::MeshShape{1, job.ranks()};
}

// Adds a job for each candidate of one data type.
void add_jobs(const Job& base, const SearchSpace& space, std::vector<Job>& jobs) {
  for (const fsdp::Strategy strategy : space.strategies) {
    Job job = base;
    job.strategy = strategy;
    const auto meshes = space.meshes.empty() ? meshes_of(job) : space.meshes;
    for (const atoll::MeshShape& mesh : meshes) {
      job.mesh = used_mesh(job, mesh);
      for (const train::Recompute recompute : space.recomputes) {
        job.recompute = recompute;
        for (const std::int64_t rows : space.micro_batches) {
          job.micro_batch = rows;
          const auto times = passes(job, space.global_batch, rows);
          if (!times) continue;
          job.micro_batches = *times;
          add_prefetches(job, space, jobs);
        }
      }
    }
  }
}

// One line for the numbers of hosts up to the one at `last` on which nothing fits; "" if the job
// does not fit on the next one either.
std::string no_fit_line(const Scaling& scaling, std::size_t last) {
  const bool is_end = last + 1 == scaling.hosts.size();
  if (!is_end && !scaling.best[last + 1].prediction.fits) return {};
  std::size_t first = last;
  while (first > 0 && !scaling.best[first - 1].prediction.fits) --first;
  const Candidate& least = scaling.best[last];
  const std::string hosts = first == last ? "" : fmt::format("{}-", scaling.hosts[first]);
  return fmt::format(
      "{:>7}  nothing fits: the least that {} host(s) need is {:.1f} GB of {:.1f}{}\n",
      fmt::format("{}{}", hosts, scaling.hosts[last]), scaling.hosts[last], all_bytes(least) / 1e9,
      static_cast<double>(least.job.cluster.compute.memory_bytes) / 1e9,
      is_end ? "" : fmt::format("; {} hosts suffice", scaling.hosts[last + 1]));
}

// Returns the search space for a job on fewer ranks.
SearchSpace space_on(SearchSpace space, int ranks) {
  for (atoll::MeshShape& mesh : space.meshes) {
    const int shard = std::min(mesh.shard, ranks);
    mesh = ranks % shard == 0 ? atoll::MeshShape{ranks / shard, shard} : atoll::MeshShape{1, ranks};
  }
  return space;
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

const char* cause(const Candidate& best, const Candidate& other) {
  const auto per_token = [](const Candidate& one, double Prediction::*seconds) {
    return one.prediction.*seconds * one.job.ranks() / one.job.tokens();
  };
  const auto saved = [&](double Prediction::*seconds) {
    return per_token(other, seconds) - per_token(best, seconds);
  };
  const double whole = saved(&Prediction::step_s);
  if (whole > 0 && saved(&Prediction::exposed_s) > 0.5 * whole)
    return "less of its communication is exposed";
  if (best.job.recompute < other.job.recompute) return "it recomputes less";
  return best.job.micro_batch > other.job.micro_batch
             ? "its larger micro batches fit in memory"
             : "its collectives slow compute less, or each GPU updates fewer parameters";
}

std::vector<Candidate> search(const Job& base, const SearchSpace& space) {
  std::vector<Job> jobs;
  if (space.dtypes.empty()) add_jobs(base, space, jobs);
  for (const atoll::DType dtype : space.dtypes) {
    Job job = base;
    job.dtype = dtype;
    if (space.reduces_in_dtype) job.reduce_dtype = dtype;
    add_jobs(job, space, jobs);
  }
  auto found = simulate_all(jobs);
  std::ranges::stable_sort(found, better);
  return found;
}

Scaling scaling_of(const Candidate& best, const SearchSpace& space) {
  Scaling scaling;
  const int last = best.job.cluster.hosts;
  for (int hosts = 1; hosts < last; hosts *= 2) {
    Job job = best.job;
    job.cluster.hosts = hosts;
    auto found = search(job, space_on(space, job.ranks()));
    if (found.empty()) continue;
    scaling.hosts.push_back(hosts);
    scaling.best.push_back(std::move(found.front()));
  }
  scaling.hosts.push_back(last);
  scaling.best.push_back(best);
  return scaling;
}

std::int64_t rows_of(const Job& job) { return job.ranks() * job.micro_batch * job.micro_batches; }

std::string growth(const Scaling& scaling, std::int64_t global_batch) {
  if (scaling.hosts.size() < 2) return "--growth: there is only one number of hosts to try\n";
  const std::int64_t rows = rows_of(scaling.best.back().job);
  std::string text =
      "tokens/s by hosts, each with its best settings; " +
      (global_batch > 0
           ? fmt::format("the global batch has {} rows on all of them:\n", global_batch)
           : fmt::format("the global batch grows with the hosts (--global-batch {} fixes it):\n",
                         rows));
  const Candidate* first = nullptr;  // on the fewest hosts on which the job fits
  double one = 0;                    // its tokens/s of one host
  double before = 0;
  int worth = 0, hosts_before = 0;
  bool wasted = false;
  for (std::size_t i = 0; i < scaling.hosts.size(); ++i) {
    const int hosts = scaling.hosts[i];
    const auto& [job, p] = scaling.best[i];
    if (!p.fits) {
      text += no_fit_line(scaling, i);
      continue;
    }
    if (first == nullptr) {
      first = &scaling.best[i];
      one = p.tokens_per_s / hosts;
    }
    const double share = p.tokens_per_s / (one * hosts);
    text += fmt::format(
        "{:>7} {:>14.0f} {:>6.1f} % of linear  {} {}x{}, {} rows x {}, recompute {}, "
        "global batch {}{}\n",
        hosts, p.tokens_per_s, 100 * share, fsdp::name(job.strategy), job.mesh.replicate,
        job.mesh.shard, job.micro_batch, job.micro_batches, name(job.recompute), rows_of(job),
        share > 1.005 ? fmt::format("; {}", cause(scaling.best[i], *first)) : "");
    const double added = (p.tokens_per_s - before) / (hosts - hosts_before);
    wasted = wasted || added < one / 2;
    if (!wasted) worth = hosts;
    before = p.tokens_per_s;
    hosts_before = hosts;
  }
  if (wasted)
    text += fmt::format(
        "Beyond {} host(s), a further host adds less than half of the tokens/s of a host on {}.\n",
        worth, first->job.cluster.hosts);
  else if (first != nullptr && worth > first->job.cluster.hosts)
    text += fmt::format(
        "Up to {} hosts, each further host adds more than half of the tokens/s of a host on {}.\n",
        worth, first->job.cluster.hosts);
  return text;
}

}  // namespace plan

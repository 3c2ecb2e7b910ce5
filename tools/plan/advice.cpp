#include "plan/output.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/explain.hpp"
#include "report/phase.hpp"

namespace plan {
namespace {

namespace fsdp = atoll::fsdp;

struct Change {
  std::string what;
  Job job;
};

std::vector<Change> changes(const Job& job) {
  std::vector<Change> all;
  const auto add = [&](std::string what, const auto& change) {
    Change next{std::move(what), job};
    change(next.job);
    all.push_back(std::move(next));
  };
  if (job.recompute == train::Recompute::none)
    add("recompute norms and activation functions (--recompute selective)",
        [](Job& j) { j.recompute = train::Recompute::selective; });
  if (job.recompute != train::Recompute::full)
    add("recompute whole layers (--recompute full)",
        [](Job& j) { j.recompute = train::Recompute::full; });
  if (job.micro_batch > 1 && job.micro_batch % 2 == 0)
    add("halve the micro batch and double the number of micro batches (--micro-batch)", [](Job& j) {
      j.micro_batch /= 2;
      j.micro_batches *= 2;
    });
  if (job.strategy != fsdp::Strategy::full_shard)
    add("shard over all ranks (--strategy full_shard)", [](Job& j) {
      j.strategy = fsdp::Strategy::full_shard;
      j.mesh = {1, j.ranks()};
    });
  if (job.moments == atoll::DType::f32)
    add("keep moments in bf16 (--moments bf16)", [](Job& j) { j.moments = atoll::DType::bf16; });
  return all;
}

// Returns the first of `hosts`, 2 * `hosts`, 4 * `hosts`, ... hosts over which the sharded job
// fits; 0 if none does.
int hosts_that_fit(Job job, int hosts) {
  constexpr int most_hosts = 1024;
  for (; hosts <= most_hosts; hosts *= 2) {
    job.cluster.hosts = hosts;
    job.mesh = {1, job.ranks()};
    if (simulate(job).fits) return hosts;
  }
  return 0;
}

// Applies changes until the job fits. Each round applies the change that saves most memory. Returns
// a sentence that names the changes, or the number of hosts on which the job then fits.
std::string together(Job job, Prediction prediction) {
  std::vector<std::string> done;
  while (!prediction.fits) {
    std::optional<Change> best;
    Prediction least = prediction;
    for (Change& change : changes(job)) {
      Prediction p = simulate(change.job);
      if (p.bytes >= least.bytes) continue;
      least = std::move(p);
      best = std::move(change);
    }
    if (!best) break;
    done.push_back(best->what);
    job = best->job;
    prediction = std::move(least);
  }
  const double gb = static_cast<double>(prediction.bytes) / 1e9;
  if (prediction.fits)
    return fmt::format("The job fits in {:.1f} GB if you {}", gb, fmt::join(done, ", and "));
  const bool shards = job.strategy == fsdp::Strategy::full_shard;
  job.strategy = fsdp::Strategy::full_shard;
  const int hosts = hosts_that_fit(job, 2 * job.cluster.hosts);
  const std::string needs = hosts > 0 ? fmt::format("it fits on {} hosts{}", hosts,
                                                    shards ? "" : " with --strategy full_shard")
                                      : std::string("more hosts do not help");
  return fmt::format("All of them together need {:.1f} GB; with them, {}", gb, needs);
}

std::string hosts_text(int hosts) { return fmt::format("{} host{}", hosts, hosts == 1 ? "" : "s"); }

std::string settings(const Job& job) {
  return fmt::format("{} {}x{}, {} rows, recompute {}", fsdp::name(job.strategy),
                     job.mesh.replicate, job.mesh.shard, job.micro_batch, name(job.recompute));
}

// The share of a rank's memory that a candidate needs; 0 if the memory is not known.
double used_share(const Candidate& candidate) {
  const auto limit = static_cast<double>(candidate.job.cluster.compute.memory_bytes);
  return limit > 0 ? all_bytes(candidate) / limit : 0;
}

}  // namespace

std::string reason(const std::vector<Candidate>& found) {
  if (found.empty() || !found.front().prediction.fits) return {};
  const auto& [best, p] = found.front();
  const auto other = std::ranges::find_if(found, [&](const Candidate& candidate) {
    return candidate.job.strategy != best.strategy && candidate.prediction.fits;
  });
  if (other == found.end()) return {};
  const Prediction& q = other->prediction;
  const double gain = p.tokens_per_s / q.tokens_per_s - 1;
  if (gain < 0.03) {
    return fmt::format("{} and {} are within {:.1f} %: the prediction does not tell them apart",
                       fsdp::name(best.strategy), fsdp::name(other->job.strategy), 100 * gain);
  }
  return fmt::format("{} is {:.1f} % faster than {}: {}", fsdp::name(best.strategy), 100 * gain,
                     fsdp::name(other->job.strategy), cause(found.front(), *other));
}

std::string other_mesh(const std::vector<Candidate>& found) {
  if (found.empty() || !found.front().prediction.fits) return {};
  const Candidate& best = found.front();
  const Cluster& cluster = best.job.cluster;
  const atoll::MeshShape planned{cluster.hosts, cluster.ranks_per_host};
  if (cluster.hosts == 1 || best.job.mesh == planned) return {};
  // atoll-train's default strategy.
  const auto other = std::ranges::find_if(found, [&](const Candidate& candidate) {
    return candidate.job.mesh == planned && candidate.prediction.fits &&
           candidate.job.strategy == fsdp::Strategy::hybrid_shard;
  });
  if (other == found.end()) return {};
  const train::Phase phase("finding the bandwidth at which another mesh wins");
  constexpr int rounds = 9;  // to a percent
  const auto rate = rate_below_which(cluster.fabric, rounds, [&](double gbyte_s) {
    const auto speed = [&](Job job) {
      job.cluster.fabric.most_gbyte_s = gbyte_s;
      return simulate(job).tokens_per_s;
    };
    return speed(other->job) > speed(best.job);
  });
  const auto text = [](const Job& job) {
    return fmt::format("{} {}x{}", fsdp::name(job.strategy), job.mesh.replicate, job.mesh.shard);
  };
  const double gain = best.prediction.tokens_per_s / other->prediction.tokens_per_s - 1;
  return fmt::format(
      "atoll-train plans the mesh {}x{}, which shards inside a host. On this fabric {} is {:.1f} % "
      "faster than {}: {}. {}",
      planned.replicate, planned.shard, text(best.job), 100 * gain, text(other->job),
      cause(best, *other),
      rate ? fmt::format("Below {:.1f} GB/s a host, {} wins", *rate, text(other->job))
           : std::string("It is so on a slower fabric as well"));
}

const Candidate* with_spare_memory(const std::vector<Candidate>& found) {
  // Predicted memory is off by a tenth on average, so a tenth stays free (field_runs.py).
  const auto other = std::ranges::find_if(
      found, [](const Candidate& candidate) { return used_share(candidate) <= 0.9; });
  return other == found.end() ? nullptr : &*other;
}

std::string tight(const std::vector<Candidate>& found) {
  if (found.empty() || !found.front().prediction.fits) return {};
  const Candidate* const other = with_spare_memory(found);
  if (other == &found.front()) return {};
  std::string text = fmt::format(
      "The first line needs {:.0f} % of a rank's memory, and predicted memory is off by a tenth on "
      "average",
      100 * used_share(found.front()));
  if (other == nullptr) return text;
  return text + fmt::format(". With a tenth to spare: {}, {:.0f} tokens/s", settings(other->job),
                            other->prediction.tokens_per_s);
}

std::string least_memory(const std::vector<Candidate>& found) {
  if (found.empty() || !found.front().prediction.fits) return {};
  const Candidate& least = *std::ranges::min_element(found, {}, all_bytes);
  const int all = least.job.cluster.hosts, fewest = hosts_that_fit(least.job, 1);
  return fmt::format(
      "Least memory: {}: {:.1f} GB of the {:.1f} GB of a rank; {} fits on {}", settings(least.job),
      all_bytes(least) / 1e9, static_cast<double>(least.job.cluster.compute.memory_bytes) / 1e9,
      fsdp::name(least.job.strategy), hosts_text(fewest > 0 ? std::min(fewest, all) : all));
}

std::vector<std::string> remarks_on(const std::vector<Candidate>& found) {
  const auto& [job, prediction] = found.front();
  std::vector<std::string> remarks;
  if (!prediction.fits) remarks = savings(job, prediction);
  for (std::string text : {reason(found), other_mesh(found), tight(found), least_memory(found)}) {
    if (!text.empty()) remarks.push_back(std::move(text));
  }
  return remarks;
}

std::vector<std::string> savings(const Job& job, const Prediction& prediction) {
  std::vector<std::pair<double, std::string>> found;
  bool one_suffices = false;
  for (const auto& [what, changed] : changes(job)) {
    const Prediction p = simulate(changed);
    if (p.bytes >= prediction.bytes) continue;
    one_suffices |= p.fits;
    const double cost = prediction.tokens_per_s / p.tokens_per_s - 1;
    found.emplace_back(cost, fmt::format("- {}: saves {:.1f} GB, time per token {:+.1f} %{}", what,
                                         static_cast<double>(prediction.bytes - p.bytes) / 1e9,
                                         100 * cost, p.fits ? ", and the job fits" : ""));
  }
  std::ranges::sort(found);
  std::vector<std::string> texts{
      fmt::format("Nothing fits in the {:.1f} GB of a rank. Changes to the first line:",
                  static_cast<double>(job.cluster.compute.memory_bytes) / 1e9)};
  for (auto& [cost, text] : found) texts.push_back(std::move(text));
  if (!one_suffices) {
    texts.push_back(together(job, prediction));
    return texts;
  }
  Job wide = job;
  wide.strategy = fsdp::Strategy::full_shard;
  if (const int hosts = hosts_that_fit(wide, 2 * job.cluster.hosts); hosts > 0)
    texts.push_back(fmt::format("With --strategy full_shard alone, it fits on {} hosts", hosts));
  return texts;
}

}  // namespace plan

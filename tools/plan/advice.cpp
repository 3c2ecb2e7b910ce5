#include "plan/advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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
    add("halve the micro batch, with twice as many (--micro-batch)", [](Job& j) {
      j.micro_batch /= 2;
      j.micro_batches *= 2;
    });
  if (job.strategy != fsdp::Strategy::full_shard)
    add("shard over all ranks (--strategy full_shard)", [](Job& j) {
      j.strategy = fsdp::Strategy::full_shard;
      j.mesh = {1, j.ranks()};
    });
  if (job.moments == atoll::DType::f32)
    add("moments in bf16 (--moments bf16)", [](Job& j) { j.moments = atoll::DType::bf16; });
  return all;
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
  const double per_token = q.exposed_s / other->job.tokens() - p.exposed_s / best.tokens();
  const double whole = q.step_s / other->job.tokens() - p.step_s / best.tokens();
  const double share = whole > 0 ? per_token / whole : 0;
  return fmt::format("{} is {:.1f} % faster than {}: {}", fsdp::name(best.strategy), 100 * gain,
                     fsdp::name(other->job.strategy),
                     share > 0.5 ? "less of its communication is exposed"
                                 : "it recomputes less, or its larger micro batches fit in memory");
}

std::vector<std::string> savings(const Job& job, const Prediction& prediction) {
  std::vector<std::pair<double, std::string>> found;
  for (const auto& [what, changed] : changes(job)) {
    const Prediction p = simulate(changed);
    if (p.bytes >= prediction.bytes) continue;
    const double cost = prediction.tokens_per_s / p.tokens_per_s - 1;
    found.emplace_back(cost, fmt::format("{}: saves {:.1f} GB, step time {:+.1f} %{}", what,
                                         static_cast<double>(prediction.bytes - p.bytes) / 1e9,
                                         100 * cost, p.fits ? ", and the job fits" : ""));
  }
  std::ranges::sort(found);
  std::vector<std::string> texts;
  for (auto& [cost, text] : found) texts.push_back(std::move(text));
  return texts;
}

}  // namespace plan

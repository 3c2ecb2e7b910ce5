#include "plan/growth.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace plan {
namespace {

namespace fsdp = atoll::fsdp;

// The space on fewer ranks.
SearchSpace space_on(SearchSpace space, int ranks) {
  for (atoll::MeshShape& mesh : space.meshes) {
    const int shard = std::min(mesh.shard, ranks);
    mesh = ranks % shard == 0 ? atoll::MeshShape{ranks / shard, shard} : atoll::MeshShape{1, ranks};
  }
  return space;
}

}  // namespace

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

int Scaling::fewest_hosts() const {
  for (std::size_t i = 0; i < hosts.size(); ++i)
    if (best[i].prediction.fits) return hosts[i];
  return 0;
}

double Scaling::tokens_per_s_of_host() const {
  for (std::size_t i = 0; i < hosts.size(); ++i)
    if (best[i].prediction.fits) return best[i].prediction.tokens_per_s / hosts[i];
  return 0;
}

std::string growth(const Scaling& scaling) {
  if (scaling.hosts.size() < 2) return "--growth: there is only one number of hosts to try\n";
  std::string text = "tokens/s by hosts, each with its best settings:\n";
  const double one = scaling.tokens_per_s_of_host();
  double before = 0;
  int worth = 0, hosts_before = 0;
  bool wasted = false;
  for (std::size_t i = 0; i < scaling.hosts.size(); ++i) {
    const int hosts = scaling.hosts[i];
    const auto& [job, p] = scaling.best[i];
    if (!p.fits) {
      text += fmt::format("{:>7}  does not fit\n", hosts);
      continue;
    }
    text +=
        fmt::format("{:>7} {:>14.0f} {:>6.1f} % of linear  {} {}x{}, {} rows x {}, recompute {}\n",
                    hosts, p.tokens_per_s, 100 * p.tokens_per_s / (one * hosts),
                    fsdp::name(job.strategy), job.mesh.replicate, job.mesh.shard, job.micro_batch,
                    job.micro_batches, name(job.recompute));
    const double added = (p.tokens_per_s - before) / (hosts - hosts_before);
    wasted = wasted || added < one / 2;
    if (!wasted) worth = hosts;
    before = p.tokens_per_s;
    hosts_before = hosts;
  }
  if (wasted)
    text += fmt::format(
        "Beyond {} host(s), a further host adds less than half of the tokens/s of a host on {}.\n",
        worth, scaling.fewest_hosts());
  return text;
}

}  // namespace plan

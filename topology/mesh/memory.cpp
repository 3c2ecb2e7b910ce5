#include "mesh/planning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "facts.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

void check_options(const MeshPlanOptions& options) {
  const auto check = [](double value, std::string_view what) {
    if (!std::isfinite(value) || value <= 0) refuse("{} must be more than 0, not {}", what, value);
  };
  check(*options.params, "the number of parameters");
  check(options.state_bytes, "the number of state bytes for each parameter");
  if (options.gpu_memory_bytes) check(*options.gpu_memory_bytes, "the memory of a GPU");
  if (!(options.reserve >= 0 && options.reserve < 1))
    refuse("the reserved share of the memory must be at least 0 and below 1, not {}",
           options.reserve);
}

// Formats a count: "1.5e12", "70e9", "350e6", "1234".
std::string count_text(double count) {
  if (count >= 1e12) return fmt::format("{:.6g}e12", count / 1e12);
  if (count >= 1e9) return fmt::format("{:.6g}e9", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.6g}e6", count / 1e6);
  return fmt::format("{:.6g}", count);
}

// Returns the least memory that a rank has. Ranks on one GPU get equal shares of its memory.
double least_memory(const Topology& topology, const std::vector<RankSite>& ranks,
                    const MeshSites& sites) {
  constexpr std::string_view remedy = "set the memory size with --gpu-memory";
  std::map<int, int> users;
  for (const MeshSite& site : sites.ranks) ++users[site.gpu];
  double least = INFINITY;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const int gpu = sites.ranks[rank].gpu;
    if (gpu < 0) refuse("rank {} has no GPU whose memory is known: {}", rank, remedy);
    if (!ranks[rank].partition.empty())
      refuse("rank {} uses a partition of {}, whose memory no source provides: {}", rank,
             ranks[rank].gpu, remedy);
    const TopologyGpu& used = topology.gpus[static_cast<std::size_t>(gpu)];
    const auto memory = number_fact(used.facts, fact::memory_bytes);
    if (!memory || *memory <= 0)
      refuse("no source provides the memory of {}: {}", DisplayNames(topology).device(used.id),
             remedy);
    least = std::min(least, *memory / users[gpu]);
  }
  return least;
}

}  // namespace

// The factor 1 - 1e-12 tolerates rounding: a model that fills its memory exactly fits.
double MemoryNeed::gpus_needed() const {
  return std::max(1.0, std::ceil(state / gpu_gives * (1 - 1e-12)));
}

std::optional<MemoryNeed> memory_need(const Topology& topology, const std::vector<RankSite>& ranks,
                                      const MeshSites& sites, const MeshPlanOptions& options) {
  if (!options.params) return std::nullopt;
  check_options(options);
  const double memory =
      options.gpu_memory_bytes ? *options.gpu_memory_bytes : least_memory(topology, ranks, sites);
  const std::string_view noun = all_have_gpus(sites) ? "GPU" : "rank";
  MemoryNeed need;
  need.state = *options.params * options.state_bytes;
  need.gpu_gives = memory * (1 - options.reserve);
  need.product = fmt::format("{} parameters x {:g} bytes = {}", count_text(*options.params),
                             options.state_bytes, gib_text(need.state));
  need.gives = options.reserve > 0
                   ? fmt::format("{} a {} ({} less {:g} %)", gib_text(need.gpu_gives), noun,
                                 gib_text(memory), options.reserve * 100)
                   : fmt::format("{} a {}", gib_text(need.gpu_gives), noun);
  return need;
}

void refuse_model(const MemoryNeed& need, const MeshSites& sites) {
  const std::size_t size = sites.ranks.size();
  const std::string_view noun = all_have_gpus(sites) ? "GPU" : "rank";
  const double all = static_cast<double>(size) * need.gpu_gives;
  refuse(
      "the model does not fit: {}; {}, {}; {} are missing: use at least {:.0f} {}s, or fewer bytes "
      "for each parameter (--state-bytes)",
      need.product,
      size == 1 ? fmt::format("1 {} holds {}", noun, gib_text(all))
                : fmt::format("all {} hold {} together", plural(size, noun), gib_text(all)),
      need.gives, gib_text(need.state - all), need.gpus_needed(), noun);
}

}  // namespace atoll_v1::atoll

#include "loop/run_plan.hpp"

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace train {
namespace {

using nlohmann::json;

// Divides the ranks in order into equal islands, as Config::islands asks.
std::vector<std::vector<int>> emulated(int ranks, int islands) {
  std::vector<std::vector<int>> all(static_cast<std::size_t>(islands));
  for (int rank = 0; rank < ranks; ++rank) {
    all[static_cast<std::size_t>(static_cast<std::int64_t>(rank) * islands / ranks)].push_back(
        rank);
  }
  return all;
}

json memory_json(const atoll::fsdp::MemoryPlan& plan) {
  return {{"parameters", plan.parameters},
          {"resident", plan.resident},
          {"optimizer", plan.optimizer},
          {"gradients", plan.gradients},
          {"gathered", plan.gathered},
          {"secondary_shards", plan.secondary_shards},
          {"whole_gradients", plan.whole_gradients},
          {"staging", plan.staging},
          {"activations", plan.activations}};
}

}  // namespace

std::vector<std::vector<int>> islands_of_ranks(atoll::World& world,
                                               const atoll::Topology& topology) {
  const int asked = world.config().islands;
  if (asked > 0) return emulated(world.size(), asked);
  std::map<std::string, std::string> island_of_gpu;
  for (const atoll::Island& island : atoll::find_islands(topology)) {
    for (const std::string& gpu : island.gpus) island_of_gpu[gpu] = "gpu " + island.gpus.front();
  }
  std::vector<std::string> order;  // names of the islands, sorted by their first rank
  std::map<std::string, std::vector<int>> ranks;
  const auto sites = atoll::locate_ranks(topology, world);
  for (std::size_t rank = 0; rank < sites.size(); ++rank) {
    const auto found = island_of_gpu.find(sites[rank].gpu);
    const std::string island =
        found == island_of_gpu.end() ? "host " + sites[rank].host : found->second;
    if (!ranks.contains(island)) order.push_back(island);
    ranks[island].push_back(static_cast<int>(rank));
  }
  std::vector<std::vector<int>> all;
  for (const std::string& island : order) all.push_back(ranks[island]);
  return all;
}

json run_plan(const atoll::World& world, const atoll::Mesh& mesh,
              const std::vector<std::vector<int>>& islands, atoll::fsdp::Engine& engine) {
  const auto sharding = engine.sharding();
  json plan{{"islands", islands},
            {"order", mesh.axis("world").ranks},
            {"replicate", sharding.replicate},
            {"shard", sharding.shard},
            {"memory", memory_json(engine.memory())},
            {"hosts", json::array()},
            {"findings", json::array()}};
  for (const atoll::HostInfo& host : world.hosts()) {
    plan["hosts"].push_back({{"name", host.name}, {"ranks", host.ranks}});
  }
  for (const atoll::Finding& finding : mesh.findings()) {
    if (finding.severity == atoll::Severity::info) continue;
    plan["findings"].push_back({{"id", finding.id},
                                {"evidence", finding.evidence},
                                {"consequence", finding.consequence},
                                {"fix", finding.fix}});
  }
  return plan;
}

}  // namespace train

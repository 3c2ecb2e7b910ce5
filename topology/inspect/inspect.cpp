#include "atoll/tooling/inspection.hpp"

namespace atoll_v1::atoll {

Inspection inspect(Topology topology, std::vector<RankSite> ranks, std::optional<MeshPlan> plan) {
  Inspection inspection;
  inspection.islands = find_islands(topology);
  inspection.affinity = find_affinity(topology);
  inspection.rails = find_rails(topology, inspection.affinity);
  inspection.diagnosis = diagnose(topology, ranks, plan ? &*plan : nullptr);
  inspection.topology = std::move(topology);
  inspection.ranks = std::move(ranks);
  inspection.plan = std::move(plan);
  return inspection;
}

}  // namespace atoll_v1::atoll

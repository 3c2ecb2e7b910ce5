// Runs all checks in the order of their areas and sorts their findings by severity.
#include <algorithm>
#include <array>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll {
namespace {

using doctor::CheckRow;

// The last check of a diagnosis. It reports the findings of the planner that belong to no other
// check.
constexpr CheckRow mesh_row{"mesh", "The planner finds no fault with the mesh",
                            [](const doctor::Machine& machine, doctor::CheckResult& result) {
                              if (machine.plan != nullptr) result.looked();
                            },
                            "no mesh"};

}  // namespace

Diagnosis diagnose(const Topology& topology, std::span<const RankSite> ranks,
                   const MeshPlan* plan) {
  const doctor::Machine machine(topology, ranks, plan);
  // If the planner has findings with the id of a check, they replace the check's own findings.
  std::vector<Finding> planned = plan == nullptr ? std::vector<Finding>() : plan->findings;
  const auto take_planned = [&](std::string_view id) {
    const auto rest = std::ranges::stable_partition(
        planned, [&](const Finding& finding) { return finding.id != id; });
    std::vector<Finding> taken(rest.begin(), rest.end());
    planned.erase(rest.begin(), rest.end());
    return taken;
  };
  Diagnosis diagnosis;
  // Runs a check. If `said` is not empty, these findings of the planner replace the check's own.
  const auto run = [&](const CheckRow& row, std::vector<Finding> said) {
    doctor::CheckResult result(row);
    row.run(machine, result);
    if (!said.empty()) result.said_elsewhere();
    diagnosis.checks.push_back(result.check());
    for (Finding& finding : said.empty() ? result.findings() : std::move(said))
      diagnosis.findings.push_back(std::move(finding));
  };
  for (const auto& area : {doctor::gpu_fabric_checks, doctor::pcie_checks, doctor::gpu_checks,
                           doctor::network_checks, doctor::gpu_network_checks,
                           doctor::environment_checks, doctor::nccl_checks, doctor::rank_checks})
    for (const CheckRow& row : area) run(row, take_planned(row.id));
  run(mesh_row, std::move(planned));
  std::ranges::stable_sort(diagnosis.findings, std::ranges::greater(), &Finding::severity);
  return diagnosis;
}

std::string_view name(CheckStatus status) noexcept {
  constexpr std::array<std::string_view, 3> names{"ok", "finding", "not_checked"};
  return names[static_cast<std::size_t>(status)];
}

}  // namespace atoll_v1::atoll

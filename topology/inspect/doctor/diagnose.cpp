// Runs all checks in the order of their areas and sorts their findings by severity.
#include <algorithm>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll {
namespace {

using doctor::CheckRow;

// Returns the last check of a diagnosis. It reports the findings of the planner that belong to no
// other check.
Check mesh_check(const MeshPlan* plan, const std::vector<Finding>& said) {
  Check check{.id = "mesh", .title = "The planner finds no fault with the mesh", .reason = ""};
  check.status = said.empty() ? CheckStatus::ok : CheckStatus::finding;
  if (plan == nullptr) {
    check.status = CheckStatus::not_checked;
    check.reason = "no mesh";
  }
  return check;
}

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
  const auto append = [&](std::vector<Finding> findings) {
    for (Finding& finding : findings) diagnosis.findings.push_back(std::move(finding));
  };
  for (const auto& area : {doctor::gpu_fabric_checks, doctor::pcie_checks, doctor::gpu_checks,
                           doctor::network_checks, doctor::gpu_network_checks,
                           doctor::environment_checks, doctor::nccl_checks, doctor::rank_checks}) {
    for (const CheckRow& row : area) {
      doctor::CheckResult result;
      row.run(machine, result);
      std::vector<Finding> said = take_planned(row.id);
      if (!said.empty()) result.said_elsewhere();
      diagnosis.checks.push_back(result.check(row));
      append(said.empty() ? result.findings(row.id) : std::move(said));
    }
  }
  diagnosis.checks.push_back(mesh_check(plan, planned));
  append(std::move(planned));
  std::ranges::stable_sort(diagnosis.findings, std::ranges::greater(), &Finding::severity);
  return diagnosis;
}

std::string_view name(CheckStatus status) noexcept {
  switch (status) {
    case CheckStatus::ok:
      return "ok";
    case CheckStatus::finding:
      return "finding";
    case CheckStatus::not_checked:
      return "not_checked";
  }
  return "not_checked";
}

}  // namespace atoll_v1::atoll

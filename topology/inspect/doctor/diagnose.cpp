// Runs the checks, in the order of the areas, and sorts what they find.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll {
namespace {

using doctor::CheckRow;

// What the planner said. Its word stands where a check has the same id.
class PlanFindings {
 public:
  explicit PlanFindings(const MeshPlan* plan) {
    if (plan == nullptr) return;
    for (const Finding& finding : plan->findings) said_[finding.id].push_back(finding);
  }

  std::vector<Finding> take(std::string_view id) {
    const auto found = said_.find(id);
    if (found == said_.end()) return {};
    std::vector<Finding> findings = std::move(found->second);
    said_.erase(found);
    return findings;
  }

  std::vector<Finding> take_rest() {
    std::vector<Finding> rest;
    for (auto& [id, findings] : said_)
      for (Finding& finding : findings) rest.push_back(std::move(finding));
    said_.clear();
    return rest;
  }

 private:
  std::map<std::string, std::vector<Finding>, std::less<>> said_;
};

// The last check: what the planner says that no other check is called after.
Check mesh_check(const MeshPlan* plan, const std::vector<Finding>& said) {
  Check check{.id = "mesh", .title = "The planner has nothing against the mesh", .reason = ""};
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
  PlanFindings planned(plan);
  Diagnosis diagnosis;
  const auto append = [&](std::vector<Finding> findings) {
    for (Finding& finding : findings) diagnosis.findings.push_back(std::move(finding));
  };
  for (const auto& area : {doctor::gpu_fabric_checks, doctor::pcie_checks, doctor::gpu_checks,
                           doctor::network_checks, doctor::gpu_network_checks,
                           doctor::environment_checks, doctor::nccl_checks, doctor::rank_checks}) {
    for (const CheckRow& row : area) {
      doctor::Verdict verdict;
      row.run(machine, verdict);
      std::vector<Finding> said = planned.take(row.id);
      if (!said.empty()) verdict.said_elsewhere();
      diagnosis.checks.push_back(verdict.check(row.id, row.title));
      append(said.empty() ? verdict.findings(row.id) : std::move(said));
    }
  }
  std::vector<Finding> rest = planned.take_rest();
  diagnosis.checks.push_back(mesh_check(plan, rest));
  append(std::move(rest));
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

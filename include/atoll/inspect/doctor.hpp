// The doctor: checks of a machine or a job, and what they find.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/finding.hpp"

namespace atoll_v1::atoll {

struct Topology;
struct RankSite;
struct MeshPlan;

enum class CheckStatus {
  ok,
  finding,
  not_checked
};
std::string_view name(CheckStatus status) noexcept;

struct Check {
  std::string id;
  std::string title;  // "NVLinks are up"
  CheckStatus status = CheckStatus::not_checked;
  std::string reason;  // why it was not_checked: "needs root", "no NVML: ..."; else ""
};

struct Diagnosis {
  std::vector<Check> checks;      // every check that exists, in a fixed order
  std::vector<Finding> findings;  // errors first, then in the order of the checks
};

// Runs every check. A pure function of its arguments. Without ranks or a plan, the checks that need
// them are not_checked.
Diagnosis diagnose(const Topology& topology, std::span<const RankSite> ranks = {},
                   const MeshPlan* plan = nullptr);

}  // namespace atoll_v1::atoll

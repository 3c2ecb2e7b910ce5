// The doctor: checks a machine or a job and explains what it finds.
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
ATOLL_API std::string_view name(CheckStatus status) noexcept;

struct Check {
  std::string id;
  std::string title;  // statement that is true of a healthy machine: "NVLinks are up"
  CheckStatus status = CheckStatus::not_checked;
  std::string reason;  // why the check could not run ("needs root", "no NVML: ..."); "" otherwise
};

struct Diagnosis {
  std::vector<Check> checks;      // one entry for each check that exists, in a fixed order
  std::vector<Finding> findings;  // problems found: errors first, then in the order of the checks
};

// Runs all checks. The result depends only on the arguments; no file or device is read. Checks that
// need ranks or a mesh plan have the status not_checked when these are missing.
ATOLL_API Diagnosis diagnose(const Topology& topology, std::span<const RankSite> ranks = {},
                             const MeshPlan* plan = nullptr);

}  // namespace atoll_v1::atoll

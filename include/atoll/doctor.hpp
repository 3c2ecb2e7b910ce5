// What is wrong with a machine or a job, what that costs, and how to mend it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace atoll_v1::atoll {

struct Topology;
struct RankSite;
struct MeshPlan;

enum class Severity {
  info,     // worth knowing; nothing is lost by it
  warning,  // slower than the machine could be, or soon to break
  error     // broken, or much slower
};
std::string_view name(Severity severity) noexcept;

struct Finding {
  std::string id;  // of the check: "nvlink_down"
  Severity severity = Severity::info;
  std::vector<std::string> subjects = {};  // ids of hosts and devices; ranks as "rank 3"
  std::string evidence;                    // what was seen, with figures
  std::string consequence = {};            // what it costs
  std::string fix = {};                    // what to do
};

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
  std::string reason;  // of not_checked: "needs root", "no NVML: ..."; else ""
};

struct Diagnosis {
  std::vector<Check> checks;      // every check that exists, in a fixed order
  std::vector<Finding> findings;  // errors first, then in order of the checks
};

// A pure function of its arguments. Checks of ranks and mesh are not_checked without them.
Diagnosis diagnose(const Topology& topology, std::span<const RankSite> ranks = {},
                   const MeshPlan* plan = nullptr);

// "ranks 0, 4 share GPU node0/gpu0: evidence; consequence; fix": one line for a log.
std::string to_line(const Finding& finding);

}  // namespace atoll_v1::atoll

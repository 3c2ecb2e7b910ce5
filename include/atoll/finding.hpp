// A finding tells people about a problem of a machine or a mesh: what was seen, what it costs and
// how to fix it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

enum class Severity {
  info,     // worth knowing; costs nothing, or cannot be improved on this machine
  warning,  // the machine is slower than it could be, or likely to break
  error     // the machine is broken, or much slower than it could be
};
ATOLL_API std::string_view name(Severity severity) noexcept;

struct Finding {
  std::string id;  // name of the check, such as "nvlink_down"
  Severity severity = Severity::info;
  std::vector<std::string> subjects = {};  // ids of the hosts and devices concerned, or "rank 3"
  std::string evidence = {};               // what the check saw, with figures
  std::string consequence = {};            // what the problem costs
  std::string fix = {};                    // how to fix the problem
};

// Returns the finding as one line for a log, "EVIDENCE; CONSEQUENCE; FIX", such as
// "ranks 0, 4 share GPU node0/gpu0; ...".
ATOLL_API std::string to_line(const Finding& finding);

}  // namespace atoll_v1::atoll

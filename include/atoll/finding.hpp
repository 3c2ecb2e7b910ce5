// What somebody should know about a machine or a mesh: what was seen, what it costs, how to mend it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

enum class Severity {
  info,     // worth knowing; costs nothing
  warning,  // slower than the machine could be, or about to break
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

// "ranks 0, 4 share GPU node0/gpu0: evidence; consequence; fix": one line for a log.
std::string to_line(const Finding& finding);

}  // namespace atoll_v1::atoll

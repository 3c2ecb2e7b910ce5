// Counters of network ports: their names in sysfs, and what it means when they rise during a run.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "facts.hpp"

namespace atoll_v1::atoll {

// Counters that rise for the same reason. If they rise during a run, compare_ports() reports one
// finding for all of them.
struct PortCounters {
  std::string_view finding;  // id of the finding
  fact::Name fact;           // the fact that lists the counters: link.errors or link.congestion
  std::span<const std::string_view> names;  // files in the port's folder counters or hw_counters
  std::uint64_t warning_from = 1;           // smaller rises have the severity info
  std::string_view consequence;
  // compare_ports() replaces NAME and PORT by those of the port.
  std::string_view fix;
  std::string_view ethernet_fix = {};  // replaces `fix` for RoCE; "" if `fix` holds for both
};

extern const std::span<const PortCounters> port_counters;

}  // namespace atoll_v1::atoll

// The values that each rank passes to all others when it joins the job: where it runs, and the
// settings that must be equal on all ranks.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// These values are mostly equal for all ranks of a host, and the store sends equal values once.
struct Introduction {
  std::string host;
  std::string host_id;
  std::vector<std::string> addresses;  // addresses of the rank, one per rail (network)
  std::chrono::seconds timeout{0};     // Config::timeout
  std::string check;                   // Config::check
  std::string failure_scope;           // Config::failure_scope
};

// The values that differ between the ranks of a host.
struct Process {
  int pid = 0;
  int local_rank = -1;  // Config::local_rank; -1: not set
};

// Returns the id of this host, followed by Config::host_id if it is set.
std::string own_host_id(const Config& config);

std::string encode(const Introduction& introduction);
// Encodes an error. A rank may publish one instead of its introduction; lay_out() then throws this
// error, with the number of the rank, on all ranks.
std::string encode(const Error& problem);
Error decode_error(std::string_view text);  // throws Error(bad_data)
std::string encode(const Process& process);

struct Layout {
  std::vector<HostInfo> hosts;
  std::vector<Placement> placements;
};

// Finds the hosts and the place of each rank from the encoded values of all ranks, in rank order.
// Throws Error(mismatch), with the same text on all ranks, if a setting differs between ranks or if
// two ranks of a host have the same local rank. If a rank has passed an error, throws that error.
Layout lay_out(const std::vector<std::string>& introductions,
               const std::vector<std::string>& processes);

// Logs a warning for each folder of the settings that cannot be used. These settings do not stop a
// job, so a wrong path would otherwise show only when its files are missed.
void warn_of_unusable_folders(const Config& config);

}  // namespace atoll_v1::atoll

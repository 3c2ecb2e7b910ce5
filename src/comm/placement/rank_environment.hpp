// What this process may use of its host.
#pragma once

#include <string>
#include <string_view>

#include "atoll/mesh_plan.hpp"

namespace atoll_v1::atoll {

// Where to look; tests put a captured tree here.
struct EnvironmentRoots {
  std::string proc = "/proc";
  std::string dev = "/dev";
  std::string sys = "/sys";
};

// GPUs that the environment and control groups leave, and the hardware threads that this process is
// bound to (none when it may run on all that are online). host and local_rank are left to the
// caller.
RankEnvironment look_around(const EnvironmentRoots& roots = {});

// One line each, for the store.
std::string to_text(const RankEnvironment& environment);
// Throws Error(bad_data).
RankEnvironment rank_environment_from(std::string_view text);

}  // namespace atoll_v1::atoll

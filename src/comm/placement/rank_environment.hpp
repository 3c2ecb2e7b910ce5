// Finds out which GPUs and cores this process may use.
#pragma once

#include <string>
#include <string_view>

#include "atoll/mesh_plan.hpp"

namespace atoll_v1::atoll {

// Roots of the file systems from which the environment is read. Tests set these paths to a captured
// tree.
struct EnvironmentRoots {
  std::string proc = "/proc";
  std::string dev = "/dev";
  std::string sys = "/sys";
};

// Returns the GPUs that environment variables and control groups allow, and the hardware threads to
// which this process is bound; the list of threads is empty when all are allowed. The caller sets
// host and local_rank.
RankEnvironment look_around(const EnvironmentRoots& roots = {});

// Encodes the environment as one line of text, to exchange it through the store.
std::string to_text(const RankEnvironment& environment);
// Decodes the text of to_text(). Throws Error(bad_data) for any other text.
RankEnvironment rank_environment_from(std::string_view text);

}  // namespace atoll_v1::atoll

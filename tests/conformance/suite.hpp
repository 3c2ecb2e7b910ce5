// Runs the whole conformance suite on one rank.
#pragma once

#include <string>

#include "atoll/config.hpp"

namespace conformance {

// Exit statuses of the suite.
inline constexpr int failed = 1;
inline constexpr int skipped = 77;

// Runs every check over one communicator of `backend` and prints the results. Returns `skipped` if
// the backend cannot be used on this machine. Must be called by all ranks of the job that `config`
// or the launcher describes.
int run_rank(atoll::Config config, const std::string& backend);

}  // namespace conformance

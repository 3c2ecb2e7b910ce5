// Runs all checks on one rank.
#pragma once

#include <string>

#include "atoll/config.hpp"

namespace conformance {

// Exit status of the program.
inline constexpr int failed = 1;
inline constexpr int skipped = 77;

// Runs every check over one communicator of `backend` and prints the results; returns `skipped` if
// the backend cannot be used here. Collective over the ranks of the job that `config` or the
// launcher describes.
int run_rank(atoll::Config config, const std::string& backend);

}  // namespace conformance

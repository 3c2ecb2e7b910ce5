// All checks on one rank.
#pragma once

#include <string>

#include "atoll/config.hpp"

namespace conformance {

// Exit statuses.
inline constexpr int failed = 1;
inline constexpr int skipped = 77;

// Every check over one communicator of `backend`, and what they found, printed; skips when the
// backend cannot be used here. Collective over the job that `config` or the launcher names.
int run_rank(atoll::Config config, const std::string& backend);

}  // namespace conformance

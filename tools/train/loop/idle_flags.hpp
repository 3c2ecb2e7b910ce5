// Flags that a run would ignore.
#pragma once

#include <string>
#include <vector>

#include "loop/options.hpp"

namespace train {

// Returns a line for each group of flags that have values other than the defaults, but no effect
// beside the other flags. The options are resolved and checked.
std::vector<std::string> idle_flags(const RunOptions& options);

}  // namespace train

// The machine that atoll-topo describes, and the mesh on it.
#pragma once

#include <optional>

#include "atoll/config.hpp"
#include "atoll/inspection.hpp"
#include "options.hpp"

namespace topo {

// Empty on the ranks of a job that print nothing. Collective under a launcher.
std::optional<atoll::Inspection> examine(const Options& options, const atoll::Config& config);

}  // namespace topo

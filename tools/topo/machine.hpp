// The machine that atoll-topo describes, and the mesh on it.
#pragma once

#include <optional>

#include "atoll/config.hpp"
#include "atoll/inspect/inspection.hpp"
#include "atoll/inspect/load.hpp"
#include "options.hpp"

namespace topo {

struct Examination {
  atoll::Inspection inspection;
  bool by_launcher = false;  // one started this process
};

// Empty on the ranks of a job that print nothing. Collective under a launcher.
std::optional<Examination> examine(const Options& options, const atoll::Config& config);

}  // namespace topo

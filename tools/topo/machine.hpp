// Loads or discovers the machine that atoll-topo describes, and plans its mesh.
#pragma once

#include <optional>

#include "atoll/config.hpp"
#include "atoll/inspect/inspection.hpp"
#include "atoll/inspect/load.hpp"
#include "options.hpp"

namespace topo {

struct Examination {
  atoll::Inspection inspection;
  bool by_launcher = false;  // true if a launcher started this process
};

// Examines the machine. Under a launcher, all ranks must call this function. The result is empty on
// ranks that print nothing.
std::optional<Examination> examine(const Options& options, const atoll::Config& config);

}  // namespace topo

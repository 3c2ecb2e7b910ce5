// Gets the machine that atoll-topo describes, and its mesh.
#pragma once

#include <optional>

#include "atoll/config.hpp"
#include "atoll/inspect/inspection.hpp"
#include "atoll/inspect/load.hpp"
#include "options.hpp"

namespace topo {

struct Examination {
  atoll::Inspection inspection;
  bool by_launcher = false;  // a launcher started this process
};

// Under a launcher all ranks must call this. Empty on ranks that print nothing.
std::optional<Examination> examine(const Options& options, const atoll::Config& config);

}  // namespace topo

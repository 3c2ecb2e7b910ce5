// Watches a running job: what each rank does, which ranks keep the others waiting, and how fast
// data moves.
#pragma once

#include "atoll/config.hpp"
#include "options.hpp"

namespace topo {

// Prints what the ranks do until the job ends, the requested number of times is reached, or the
// user interrupts. Returns the exit status: 0, or 1 if the job has failed. Throws the errors of
// atoll::Observer.
int watch(const TopOptions& options, const atoll::Config& config);

}  // namespace topo

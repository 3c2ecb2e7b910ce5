// The training loop.
#pragma once

#include <functional>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/world.hpp"
#include "loop/options.hpp"
#include "loop/stopping.hpp"
#include "report/gates.hpp"
#include "report/metrics.hpp"

namespace train {

struct RunResult {
  std::vector<StepRecord> steps;
  Summary summary;
  std::vector<MissedGate> missed_gates;  // of --min-mfu and --max-memory; equal on all ranks
  Stop stop = Stop::none;                // why the run ended before --steps
};

// Called on every rank with the trained engine, so it may use collectives.
using Inspect = std::function<void(atoll::fsdp::Engine&)>;

// Prints samples of --show-data on rank 0. Collective. Throws like run().
void show_data(atoll::World& world, RunOptions options);

// Trains on all ranks of the World. Collective. Rank 0 writes files and shows progress. Throws
// atoll::Error with a one-line message; the caller then fails the World, so that no rank waits.
RunResult run(atoll::World& world, const RunOptions& options, const Inspect& inspect = {});

}  // namespace train

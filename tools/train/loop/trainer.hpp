// The training run: data, model and engine put together, step by step.
#pragma once

#include <memory>
#include <vector>

#include "atoll/world.hpp"
#include "loop/options.hpp"
#include "report/metrics.hpp"

namespace train {

struct RunResult {
  std::vector<StepRecord> steps;
  Summary summary;
};

// One run on all ranks of the World. Collective. Rank 0 writes files and shows progress. Throws
// atoll::Error with one line; the caller fails the World with it, so that no rank waits.
RunResult run(atoll::World& world, const RunOptions& options);

}  // namespace train

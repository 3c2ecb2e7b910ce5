// The training run: data, model and engine put together, step by step.
#pragma once

#include <functional>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/world.hpp"
#include "loop/options.hpp"
#include "report/metrics.hpp"

namespace train {

struct RunResult {
  std::vector<StepRecord> steps;
  Summary summary;
};

// Looks at the trained engine; called on every rank, so it may be collective.
using Inspect = std::function<void(atoll::fsdp::Engine&)>;

// One run on all ranks of the World. Collective. Rank 0 writes files and shows progress. Throws
// atoll::Error with one line; the caller fails the World with it, so that no rank waits.
RunResult run(atoll::World& world, const RunOptions& options, const Inspect& inspect = {});

}  // namespace train

// Runs the steps of a job on a simulated device: the engine, the scheduler, the optimizer and the
// trainer's passes are those of a real run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/trace.hpp"
#include "plan/job.hpp"

namespace plan {

struct Prediction {
  double step_s = 0;
  double tokens_per_s = 0;     // tokens/s of all ranks
  double mfu = 0;              // the model's FLOP/s over the peak in the data sheet
  double compute_s = 0;        // part of a step in which compute runs
  double exposed_s = 0;        // part of a step in which compute waits for communication
  double communication_s = 0;  // part of a step in which a collective runs
  std::uint64_t bytes = 0;     // memory of a rank, including that of libraries
  atoll::fsdp::MemoryPlan memory{};
  bool fits = true;
  // Operations for which a measured machine has no time. Times of the general model stand in.
  std::vector<std::string> not_measured{};
  // Work of the last step. Empty unless SimulationOptions::trace is set.
  std::vector<atoll::TraceRecord> trace{};
};

struct SimulationOptions {
  int rank = 0;        // the rank to simulate
  bool trace = false;  // record each piece of work
};

// Returns global_batch / once, where `once` is the number of rows in one micro batch of all ranks.
// Throws Error(invalid_argument) if it is over 2^20.
int micro_batches_of(std::int64_t global_batch, std::int64_t once);

// Simulates a step after two warm-up steps. Throws Error(invalid_argument) if the mesh or the sizes
// do not fit.
Prediction simulate(const Job& job, const SimulationOptions& options = {});

}  // namespace plan

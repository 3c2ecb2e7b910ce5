// Computes the least time of a training step between hosts. The model of a step is: compute runs in
// order, and transfers use the link of a host one at a time, each as early as the schedule of the
// engine allows (src/fsdp/gathering.cpp, reducing.cpp). If a gather and a reduction could start at
// the same moment, the gather starts first.
#pragma once

#include <string>
#include <vector>

namespace atoll_bench {

// One unit of the model, with its compute times and its traffic.
struct StepUnit {
  double forward_s = 0;  // seconds of forward per micro batch
  double backward_s = 0;
  double gather_bytes = 0;  // bytes that leave a host for each gather
  // Bytes that leave a host for the reduction of each micro batch except the last.
  double reduce_bytes = 0;
  // Bytes that leave a host for the reduction of the last micro batch, including replicas.
  double last_reduce_bytes = 0;
};

struct StepShape {
  std::vector<StepUnit> units;  // units of the model in forward order
  int micro_batches = 1;
  int prefetch = 1;
  // Number of buffers for unsharded gradients that have not been sent over the link yet. 0 means
  // that compute never waits for such a buffer.
  int reduce_buffers = 2;
  double link_Bps = 0;  // bytes per second in each direction of the link
};

struct StepBound {
  double seconds = 0;
  double wire_seconds = 0;  // time of all transfers if compute took no time
  double wire_bytes = 0;
};

StepBound step_bound(const StepShape& shape);

}  // namespace atoll_bench

// The least time of a training step between hosts. Compute runs in order; transfers use a host's
// link one at a time, each as early as the engine's schedule allows (src/fsdp/lanes.cpp). A gather
// precedes a reduction that could start at the same moment.
#pragma once

#include <string>
#include <vector>

namespace atoll_bench {

// One unit of the model.
struct StepUnit {
  double forward_s = 0;  // seconds per micro batch
  double backward_s = 0;
  double gather_bytes = 0;       // bytes that leave a host for each gather
  double reduce_bytes = 0;       // bytes that leave a host for the reduction of each micro batch
  double last_reduce_bytes = 0;  // the same for the last micro batch, including replicas
};

struct StepShape {
  std::vector<StepUnit> units;  // units in forward order
  int micro_batches = 1;
  int prefetch = 1;
  // The number of buffers for whole gradients that wait for the link. 0 means that no buffer limits
  // compute: gradients are kept, or cross the link as shards.
  int reduce_buffers = 2;
  double link_Bps = 0;  // bytes per second in each direction
};

struct StepBound {
  double seconds = 0;
  double wire_seconds = 0;  // time of the transfers alone
  double wire_bytes = 0;
};

StepBound step_bound(const StepShape& shape);

}  // namespace atoll_bench

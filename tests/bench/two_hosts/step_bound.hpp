// The least time of a training step between hosts: its compute in order, its transfers on the link
// of a host one at a time, each as early as the engine's schedule allows (src/fsdp/lanes.cpp); a
// gather goes before a reduction that could start at the same moment.
#pragma once

#include <string>
#include <vector>

namespace atoll_bench {

// One unit of the model.
struct StepUnit {
  double forward_s = 0;  // of a micro batch
  double backward_s = 0;
  double gather_bytes = 0;       // that leave a host for each gather
  double reduce_bytes = 0;       // that leave a host for the reduction of each micro batch
  double last_reduce_bytes = 0;  // the same of the last micro batch, across replicas included
};

struct StepShape {
  std::vector<StepUnit> units;  // in the order of forward
  int micro_batches = 1;
  int prefetch = 1;
  // Whole gradients that wait for the link; 0: none does, where they are kept or cross it as
  // shards.
  int reduce_buffers = 2;
  double link_Bps = 0;  // each way
};

struct StepBound {
  double seconds = 0;
  double wire_seconds = 0;  // the link's share alone
  double wire_bytes = 0;
};

StepBound step_bound(const StepShape& shape);

}  // namespace atoll_bench

#pragma once

#include "report/utilization.hpp"

namespace train {

// A rank's figures of one step, exchanged as f64.
struct RankFigures {
  double loss = 0;  // loss summed over the rank's tokens that have a valid label
  double compute_seconds = 0;
  double enqueue_seconds = 0;
  double communication_seconds = 0;
  double exposed_seconds = 0;
  double data_wait_seconds = 0;
  Utilization use;
  double save_written = 1;  // 0: the save beside training is still being written
  double stop = 0;          // a Stop
};

}  // namespace train

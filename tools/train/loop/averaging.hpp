// A moving average of the weights (--ema), which often generalizes better than the last weights.
#pragma once

#include <cstdint>
#include <memory>

#include "atoll/fsdp.hpp"
#include "optimizers/arithmetic.hpp"

namespace train {

// average = d average + (1 - d) weights after each step, in f32. d is `decay`, but at most
// (1 + n) / (10 + n) after n steps, so that the first weights are soon forgotten; TensorFlow's
// ExponentialMovingAverage uses the same limit. The averages are a state of the engine, sharded as
// the weights, and part of every checkpoint. Frozen parameters have none.
class Averaging {
 public:
  // Collective. The engine must outlive this object.
  Averaging(atoll::fsdp::Engine& engine, std::shared_ptr<muon::Arithmetic> arithmetic,
            double decay);

  // Sets the averages to the weights, for a run that does not resume a checkpoint. Blocks.
  void start();
  // Enqueues the update after `steps` steps, behind the optimizer's work on `compute`.
  void update(atoll::Stream& compute, std::int64_t steps);
  // Exchanges weights and averages; a second call restores both, bit for bit. Collective. Blocks.
  // Preconditions: no pass is open, and no asynchronous save is in progress.
  void swap();

 private:
  // Calls `visit` with the weights and averages of each segment.
  template <class Visit>
  void each(const Visit& visit) const;

  atoll::fsdp::Engine& engine_;
  std::shared_ptr<muon::Arithmetic> arithmetic_;
  double decay_;
  atoll::Stream stream_;
  atoll::Event updated_;  // happens when the newest update() is complete
};

}  // namespace train

// Prepares the steps of a run on a thread of its own, a few steps ahead, so that training does not
// wait for files. The queue is bounded: at most `ahead` whole steps exist besides the current one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "data/batches.hpp"

namespace train {

struct LoadedStep {
  StepPlan plan;
  std::vector<MicroBatch> batches;  // this rank's micro batches
};

class StepQueue {
 public:
  // Prepares steps [first, last) of a run. Nobody else may use `batches`, which must outlive the
  // queue.
  StepQueue(Batches& batches, std::int64_t first, std::int64_t last, std::size_t ahead = 2);
  StepQueue(const StepQueue&) = delete;
  StepQueue& operator=(const StepQueue&) = delete;
  ~StepQueue();

  // Returns the next step, and waits until it is ready. Throws the error that preparing the step
  // threw. Precondition: fewer than last - first steps were taken.
  LoadedStep take();

  // Time that take() has waited since the last call of this function.
  std::chrono::nanoseconds take_waited() noexcept { return std::exchange(waited_, {}); }

 private:
  void produce(const std::stop_token& stop);

  Batches& batches_;
  std::int64_t next_, last_;
  std::size_t ahead_;
  std::chrono::nanoseconds waited_{};
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<LoadedStep> ready_;
  std::exception_ptr failure_;
  std::jthread thread_;  // destroyed first, because the thread uses the other members
};

}  // namespace train

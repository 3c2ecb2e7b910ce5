#include "data/step_queue.hpp"

namespace train {

StepQueue::StepQueue(Batches& batches, std::int64_t first, std::int64_t last, std::size_t ahead)
    : batches_(batches),
      next_(first),
      last_(last),
      ahead_(ahead),
      thread_([this](const std::stop_token& stop) { produce(stop); }) {}

StepQueue::~StepQueue() = default;

void StepQueue::produce(const std::stop_token& stop) {
  try {
    for (; next_ < last_; ++next_) {
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [&] { return ready_.size() < ahead_; })) return;
      }
      LoadedStep step{batches_.step(batches_.position(next_)), {}};
      for (int m = 0; m < step.plan.micro_batches && !stop.stop_requested(); ++m) {
        step.batches.push_back(batches_.micro_batch(step.plan, m));
      }
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(step));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

LoadedStep StepQueue::take() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
  waited_ += std::chrono::steady_clock::now() - start;
  if (ready_.empty()) std::rethrow_exception(failure_);
  LoadedStep step = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return step;
}

}  // namespace train

// Threads that run the callbacks of Futures. A callback may wait for another operation and for its
// Future, so it runs neither on a thread of atoll nor behind another callback.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace atoll_torch {

class Completions {
 public:
  // Never destroyed: at the end of the process its threads may still run callbacks.
  static Completions& get() {
    static auto* const all = new Completions;
    return *all;
  }
  void run(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (tasks_.size() > idle_) {
      std::thread([this] { serve(); }).detach();
      ++idle_;
    }
    wake_.notify_one();
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return !tasks_.empty(); });
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      --idle_;
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      ++idle_;
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::size_t idle_ = 0;  // threads that wait for a task or have not begun yet
};

}  // namespace atoll_torch

// Streams of the `host` device: an ordered queue and a worker thread.
//
// One thread at a time holds the role of executor and keeps it until the queue is empty. That is
// the worker, or a thread that synchronizes with an event and finds the role free: so a small
// operation that is enqueued and waited for at once runs on the caller's thread, without a
// hand-over.
//
// To wake the worker costs a system call, and a core that somebody else may be using. A worker that
// was woken in vain, because a caller had run the work itself, dozes for a while: it looks at the
// queue now and then, and nobody wakes it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "device/backend.hpp"

namespace atoll_v1::atoll::host {

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // `always` tasks run even after a failure: they complete events.
  enum class Kind {
    work,
    always
  };
  void push(Kind kind, std::function<void()> run);
  // Takes the role of executor, if it is free, and runs tasks until `done` or the queue is empty.
  void help_until(const std::function<bool()>& done);
  void work(const std::stop_token& stop);  // the worker's life: until stopped and empty
  void wake() { ready_.notify_all(); }
  // Wakes the worker, unless it dozes.
  void notify();

  // Called by the executor only, from within a task.
  void run_guarded(const std::function<void()>& work);
  void fail(std::exception_ptr error) {
    if (!error_) error_ = std::move(error);
  }
  std::exception_ptr error() const { return error_; }

  std::atomic<std::int64_t> exposed_ns{0};

 private:
  struct Task {
    Kind kind;
    std::function<void()> run;
  };
  void execute(Task& task);
  bool ready() const { return !tasks_.empty() && !executing_; }
  // Until ready() or stopped; the lock is held before and after.
  void await_ready(std::unique_lock<std::mutex>& lock, const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any ready_;
  std::deque<Task> tasks_;
  std::uint64_t pushed_ = 0;
  bool executing_ = false;  // somebody holds the role
  std::atomic<bool> dozing_{false};
  std::exception_ptr error_;  // the first failure; belongs to the executor
};

class HostEvent final : public EventBackend {
 public:
  explicit HostEvent(std::weak_ptr<Queue> queue) : queue_(std::move(queue)) {}
  bool happened() const override { return happened_.load(std::memory_order_acquire); }
  void synchronize() override;
  void complete(std::exception_ptr error);

 private:
  std::weak_ptr<Queue> queue_;
  std::atomic<bool> happened_{false};
  std::exception_ptr error_;  // written before happened_
};

class HostStream final : public StreamBackend {
 public:
  explicit HostStream(const StreamOptions& options);
  ~HostStream() override;
  void enqueue(std::function<void()> work) override;
  void copy(void* dst, const void* src, std::size_t bytes) override;
  void zero(void* dst, std::size_t bytes) override;
  std::shared_ptr<EventBackend> record() override;
  std::shared_ptr<EventBackend> enqueue_and_record(std::function<void()> work) override;
  void wait(std::shared_ptr<EventBackend> event, WaitReason reason) override;
  void synchronize() override;
  std::chrono::nanoseconds exposed_communication() const override;
  void* native() noexcept override { return nullptr; }

 private:
  std::shared_ptr<Queue> queue_;
  std::jthread worker_;
};

}  // namespace atoll_v1::atoll::host

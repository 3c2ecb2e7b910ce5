// Streams of the host device: an ordered queue and a worker thread.
//
// One thread at a time is the executor of a queue and runs its tasks until the queue is empty. It
// is either the worker, or a thread that synchronizes with an event while there is no executor. A
// small operation that the caller waits for at once therefore runs on the caller's thread, without
// a thread switch.
//
// Waking the worker costs a system call and may take a core from another thread. If a caller has
// run the work before the worker woke up, the worker dozes for a while: it polls the queue at
// intervals, and callers do not wake it.
//
// A caller that enqueues and runs its own work takes no lock unless it wakes the worker
// (task_queue.hpp).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "device/backend.hpp"
#include "device/host/task_queue.hpp"
#include "device/stream_failure.hpp"
#include "device/task.hpp"

namespace atoll_v1::atoll::host {

class Queue;

// One task of a stream's queue. The same object is the node of the linked list and the event that
// marks the end of the task.
class HostEvent final : public EventBackend {
 public:
  // After a failure of the stream, tasks of kind `always` still run, and other tasks do not.
  enum class Kind {
    work,
    always
  };
  HostEvent(Kind kind, Task&& task, std::weak_ptr<Queue> queue)
      : kind_(kind), task_(std::move(task)), queue_(std::move(queue)) {}
  bool happened() const override { return happened_.load(std::memory_order_acquire) != 0; }
  void synchronize() override;

 private:
  friend class Queue;
  friend struct TaskQueueOf<std::atomic, HostEvent>;

  Kind kind_;
  Task task_;
  std::weak_ptr<Queue> queue_;
  std::shared_ptr<HostEvent> self_;  // keeps this event alive while it is in the queue
  std::atomic<HostEvent*> next{nullptr};
  std::atomic<int> happened_{0};  // not bool, because waits on int map directly to a futex
  std::shared_ptr<StreamFailure> failure_;  // of the stream so far; set before happened_
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  explicit Queue(std::string name);

  // Appends a task to the queue and returns the event that marks the end of the task.
  std::shared_ptr<HostEvent> push(HostEvent::Kind kind, Task&& task);
  // If there is no executor, becomes it and runs tasks until `event` has happened or the queue is
  // empty.
  void help_until(const HostEvent* event);
  // Waits until all tasks have run. Allocates no memory.
  void drain();
  void work(const std::stop_token& stop);  // main loop of the worker thread
  void wake();
  // Throws Error(invalid_argument) if this thread runs a task of this queue. The task would wait
  // for work that runs only after the task.
  void require_other_task() const;
  // Call this when the stream is destroyed. Returns true if this thread runs a task of the queue,
  // which then cannot wait for the work that remains. The queue drops that work with an error.
  bool ends_in_own_task();

  std::atomic<std::int64_t> exposed_ns{0};

 private:
  void execute_next();
  void fail(std::shared_ptr<StreamFailure> failure);  // keeps the first failure
  // Waits until ready() is true or a stop is requested. The caller holds `lock` before and after.
  void await_ready(std::unique_lock<std::mutex>& lock, const std::stop_token& stop);

  const std::string name_;
  // Only the thread that runs tasks writes the following members. They have their own cache line.
  alignas(64) std::shared_ptr<HostEvent> first_;  // last finished task; links to the next one
  std::shared_ptr<StreamFailure> failure_;        // the first failure of a task
  TaskQueueOf<std::atomic, HostEvent> tasks_;
  std::atomic<bool> pushing_{false};  // true while a thread adds a task
  std::mutex mutex_;                  // guards the start of the worker's sleep
  std::condition_variable_any ready_;
};

class HostStream final : public StreamBackend {
 public:
  explicit HostStream(const StreamOptions& options);
  ~HostStream() override;
  void enqueue(std::function<void()> work) override;
  void copy(void* dst, const void* src, std::size_t bytes) override;
  void fill(void* dst, std::byte value, std::size_t bytes) override;
  std::shared_ptr<EventBackend> record() override;
  std::shared_ptr<EventBackend> enqueue_and_record(Task work) override;
  std::shared_ptr<const StampBackend> stamp() override;  // sets the stamp even after a failure
  void wait(std::shared_ptr<EventBackend> event, WaitReason reason) override;
  void synchronize() override;
  std::chrono::nanoseconds exposed_communication() const override;
  void* native() noexcept override { return nullptr; }

 private:
  std::shared_ptr<Queue> queue_;
  std::jthread worker_;
};

}  // namespace atoll_v1::atoll::host

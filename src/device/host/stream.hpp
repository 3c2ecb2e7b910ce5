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
//
// No lock is taken on the way of such an operation. The queue is a list with one producer, whoever
// calls the stream, and one consumer, whoever is executor. Counters tell whether it is empty: who
// adds a task, and who leaves the role or goes to sleep, each writes first and then looks at what
// the other one wrote, in one total order, so that one of the two sees the other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "device/backend.hpp"
#include "device/task.hpp"

namespace atoll_v1::atoll::host {

class Queue;

// A task, its place in the queue, and the event of its end.
class HostEvent final : public EventBackend {
 public:
  // `always` tasks run even after a failure.
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

  Kind kind_;
  Task task_;
  std::weak_ptr<Queue> queue_;
  std::shared_ptr<HostEvent> self_;  // while the queue needs it
  std::atomic<HostEvent*> next_{nullptr};
  std::atomic<int> happened_{0};  // an int, which can be waited for without a proxy
  std::exception_ptr error_;      // of the stream, up to here; written before happened_
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  Queue();

  // The event of the task's end.
  std::shared_ptr<HostEvent> push(HostEvent::Kind kind, Task&& task);
  // Takes the role of executor, if it is free, and runs tasks until `event` has happened or the
  // queue is empty.
  void help_until(const HostEvent* event);
  void work(const std::stop_token& stop);  // the worker's life: until stopped and empty
  void wake();

  std::atomic<std::int64_t> exposed_ns{0};

 private:
  // Of the worker.
  enum class Rest {
    none,
    dozing,
    sleeping
  };
  bool empty() const { return taken_.load() == pushed_.load(); }
  bool ready() const { return !empty() && !executing_.load(); }
  bool take_role() {
    return !executing_.load(std::memory_order_relaxed) && !executing_.exchange(true);
  }
  void execute_next();
  // Until ready() or stopped; the lock is held before and after.
  void await_ready(std::unique_lock<std::mutex>& lock, const std::stop_token& stop);

  // The producer's.
  alignas(64) std::atomic<bool> pushing_{false};
  HostEvent* last_;
  std::atomic<std::uint64_t> pushed_{0};
  // The executor's.
  alignas(64) std::shared_ptr<HostEvent> first_;  // done; the next task is behind it
  std::exception_ptr error_;                      // the first failure
  std::atomic<std::uint64_t> taken_{0};
  std::atomic<bool> executing_{false};  // somebody holds the role

  alignas(64) std::atomic<Rest> rest_{Rest::none};
  std::mutex mutex_;  // of the worker's sleep
  std::condition_variable_any ready_;
};

class HostStream final : public StreamBackend {
 public:
  explicit HostStream(const StreamOptions& options);
  ~HostStream() override;
  void enqueue(std::function<void()> work) override;
  void copy(void* dst, const void* src, std::size_t bytes) override;
  void zero(void* dst, std::size_t bytes) override;
  std::shared_ptr<EventBackend> record() override;
  std::shared_ptr<EventBackend> enqueue_and_record(Task work) override;
  std::shared_ptr<const StampBackend> stamp() override;  // known also where the stream failed
  void wait(std::shared_ptr<EventBackend> event, WaitReason reason) override;
  void synchronize() override;
  std::chrono::nanoseconds exposed_communication() const override;
  void* native() noexcept override { return nullptr; }

 private:
  std::shared_ptr<Queue> queue_;
  std::jthread worker_;
};

}  // namespace atoll_v1::atoll::host

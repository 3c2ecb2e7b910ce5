// The CPU device: memory of the CPU, streams with worker threads, and kernels as tasks of a
// stream.
//
// Streams are an ordered queue and a worker thread.
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
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "core/limits.hpp"
#include "device/backend.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/task_queue.hpp"
#include "device/stream_failure.hpp"
#include "device/task.hpp"

namespace atoll_v1::atoll {
namespace cpu {
namespace {

// Shortest and longest time that a dozing worker thread sleeps before it checks the queue again.
// The time doubles as long as calling threads run all tasks themselves. It limits the delay of a
// task for which no thread waits.
constexpr auto first_nap = std::chrono::microseconds(50);
constexpr auto longest_nap = std::chrono::microseconds(1600);
// After this number of naps without new tasks, the worker thread stops polling and sleeps until
// another thread wakes it.
constexpr int naps_before_sleep = 10;

class Queue;

// One task of a stream's queue. The same object is the node of the linked list and the event that
// marks the end of the task.
class HostEvent final : public EventBackend {
 public:
  // While the stream has failed, tasks of kind `always` still run, and other tasks do not.
  enum class Kind {
    work,
    always
  };
  HostEvent(Kind kind, Task&& task, std::weak_ptr<Queue> queue)
      : kind_(kind), task_(std::move(task)), queue_(std::move(queue)) {}
  bool happened() const override { return happened_.load(std::memory_order_acquire) != 0; }
  void synchronize() override;
  bool then(std::function<void()> callback) override;

 private:
  friend class Queue;
  friend struct TaskQueueOf<std::atomic, HostEvent>;

  struct Callback {
    std::function<void()> call;
    Callback* next;
  };
  void call_back();

  Kind kind_;
  Task task_;
  std::weak_ptr<Queue> queue_;
  std::shared_ptr<HostEvent> self_;  // keeps this event alive while it is in the queue
  std::atomic<HostEvent*> next{nullptr};
  std::atomic<int> happened_{0};  // not bool, because waits on int map directly to a futex
  std::atomic<Callback*> callbacks_{nullptr};  // those that wait for the event, the newest first
  std::uint64_t enqueued_at_ = 0;  // time of enqueueing this work, or else the work before it
  std::shared_ptr<StreamFailure> failure_;  // failure of the stream so far; set before happened_
};

// A mutex. While no other thread wants it, lock() and unlock() take one atomic instruction each.
class BriefLock {
 public:
  void lock() noexcept {
    while (taken_.exchange(true, std::memory_order_acquire)) taken_.wait(true);
  }
  void unlock() noexcept {
    taken_.store(false);
    taken_.notify_one();
  }

 private:
  std::atomic<bool> taken_{false};
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
  // Call this when the stream is destroyed. Returns true if a task of this queue destroys it. That
  // task cannot wait for the tasks after it, so the queue drops them with an error.
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
  std::shared_ptr<StreamFailure> failure_;        // failure of a task; null if later work runs
  TaskQueueOf<std::atomic, HostEvent> tasks_;
  BriefLock pushing_;  // guards last_work_ and the end of tasks_, which takes one caller at a time
  std::uint64_t last_work_ = 0;  // time at which the newest work was enqueued
  std::mutex mutex_;             // guards the start of the worker's sleep
  std::condition_variable_any ready_;
};

// The queues whose tasks this thread runs now, the innermost first: a task that waits for another
// stream can run tasks of that stream.
class Running {
 public:
  Running(const Queue& queue, std::uint64_t enqueued_at) noexcept
      : queue_(&queue), enqueued_at_(enqueued_at), outer_(std::exchange(innermost, this)) {}
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    handled();
    innermost = outer_;
  }

  static bool includes(const Queue& queue) noexcept {
    const Running* task = innermost;
    while (task != nullptr && task->queue_ != &queue) task = task->outer_;
    return task != nullptr;
  }
  // Records that this thread gets the failure of a stream. If a task runs, it passes the failure on
  // to its own stream or handles it.
  static void receive(const std::shared_ptr<StreamFailure>& failure) {
    if (IgnoringErrors::on_this_thread()) return;
    if (innermost == nullptr) return failure->observe();
    innermost->handled();
    innermost->received_ = failure;
  }
  // Returns true if the program knew the failure that this thread got last when it enqueued the
  // task. Such a failure no longer affects the task.
  static bool was_known() noexcept {
    return innermost != nullptr && innermost->received_ &&
           innermost->received_->was_observed(innermost->enqueued_at_);
  }
  // Returns the failure of the task, which has ended with the current exception.
  std::shared_ptr<StreamFailure> failure(const std::string& stream) {
    const std::exception_ptr error = std::current_exception();
    if (received_ && received_->error() == error) return std::exchange(received_, nullptr);
    return std::make_shared<StreamFailure>(error, stream);
  }

 private:
  // Call this if the task does not pass on the failure that it received.
  void handled() {
    if (received_) std::exchange(received_, nullptr)->observe();
  }

  static inline thread_local Running* innermost = nullptr;

  const Queue* queue_;
  std::uint64_t enqueued_at_;
  Running* outer_;
  std::shared_ptr<StreamFailure> received_;
};

Queue::Queue(std::string name)
    : name_(std::move(name)),
      first_(std::make_shared<HostEvent>(HostEvent::Kind::always, Task(), std::weak_ptr<Queue>())),
      tasks_(first_.get()) {}

std::shared_ptr<HostEvent> Queue::push(HostEvent::Kind kind, Task&& task) {
  auto event = std::make_shared<HostEvent>(kind, std::move(task), weak_from_this());
  event->self_ = event;
  bool worker_sleeps = false;
  {
    const std::lock_guard lock(pushing_);
    if (kind == HostEvent::Kind::work) last_work_ = StreamFailure::now();
    event->enqueued_at_ = last_work_;
    worker_sleeps = tasks_.push(event.get());
  }
  if (worker_sleeps) wake();
  return event;
}

void Queue::wake() {
  // Waits while the worker is between its check and its sleep, so that it gets the wake-up.
  { const std::lock_guard lock(mutex_); }
  ready_.notify_all();
}

void Queue::require_other_task() const {
  require(
      !Running::includes(*this),
      "stream {}: a task of this stream waits for later work of the same stream, which runs only "
      "after the task: wait outside the task, or enqueue the work on another stream",
      name_);
}

bool Queue::ends_in_own_task() {
  if (!Running::includes(*this)) return false;
  fail(std::make_shared<StreamFailure>(
      std::make_exception_ptr(invalid("a task of this stream destroyed the stream, so the work "
                                      "after the task was dropped: destroy the stream outside its "
                                      "tasks")),
      name_));
  return true;
}

void Queue::fail(std::shared_ptr<StreamFailure> failure) {
  if (!failure_) failure_ = std::move(failure);
}

void Queue::execute_next() {
  HostEvent& event = tasks_.take(*first_);
  first_ = std::move(event.self_);
  if (failure_ && failure_->was_observed(event.enqueued_at_)) failure_.reset();
  const bool dropped = event.kind_ == HostEvent::Kind::work && failure_;
  {
    Running running(*this, event.enqueued_at_);
    if (!dropped) {
      try {
        event.task_();
      } catch (...) {
        fail(running.failure(name_));
      }
    }
    const DroppedTask mark(dropped ? &failure_->error() : nullptr);
    event.task_.reset();  // destroys the task's captures before any waiter wakes
  }
  event.failure_ = failure_;
  // This store must be sequentially consistent. The standard library's notify_all() starts by
  // loading its count of waiters, and that load could move before a release store; a waiter that
  // has just registered and seen the old value would then sleep forever.
  event.happened_.store(1);
  event.happened_.notify_all();
  if (event.callbacks_.load() != nullptr) event.call_back();
}

void Queue::help_until(const HostEvent* event) {
  tasks_.help([event] { return event != nullptr && event->happened(); }, [this] { execute_next(); },
              [this] { wake(); });
}

void Queue::drain() {
  require_other_task();
  help_until(nullptr);
  // The order of both conditions matters: the thread that takes the last task counts as the
  // executor until the task has run.
  while (!tasks_.empty() || tasks_.has_executor()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // another thread runs the tasks
    help_until(nullptr);
  }
}

void Queue::await_ready(std::unique_lock<std::mutex>& lock, const std::stop_token& stop) {
  auto nap = first_nap;
  int quiet = 0;
  bool dozing = false;
  while (!tasks_.ready() && !stop.stop_requested()) {
    const auto before = tasks_.count();
    if (dozing) {
      tasks_.show(Rest::dozing);
      if (ready_.wait_for(lock, stop, nap, [this] { return tasks_.ready(); })) break;
      nap = std::min(2 * nap, longest_nap);
      quiet = tasks_.count() == before ? quiet + 1 : 0;
      if (quiet == naps_before_sleep) dozing = false;
    } else {
      tasks_.show(Rest::sleeping);
      ready_.wait(lock, stop, [&] { return tasks_.ready() || tasks_.count() != before; });
      // If another thread has already done the work, the next rest is a doze.
      dozing = !tasks_.ready() && !stop.stop_requested();
      nap = first_nap;
      quiet = 0;
    }
  }
  tasks_.show(Rest::none);
}

void Queue::work(const std::stop_token& stop) {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      await_ready(lock, stop);
    }
    help_until(nullptr);
    if (!stop.stop_requested()) continue;
    if (tasks_.empty() && !tasks_.has_executor()) return;       // checks in the order of drain()
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // another thread runs the tasks
  }
}

// Either this thread sees that the event has happened, or the executor sees the callback.
bool HostEvent::then(std::function<void()> callback) {
  auto node = std::make_unique<Callback>(Callback{std::move(callback), callbacks_.load()});
  while (!callbacks_.compare_exchange_weak(node->next, node.get())) {
  }
  static_cast<void>(node.release());  // call_back() deletes it
  if (happened_.load() != 0) call_back();
  return true;
}

void HostEvent::call_back() {
  Callback* first = nullptr;
  for (auto* newest = callbacks_.exchange(nullptr); newest != nullptr;) {
    std::swap(first, newest->next);  // turns the list round: the oldest comes first
    std::swap(first, newest);
  }
  while (first != nullptr) {
    const std::unique_ptr<Callback> node(first);
    first = node->next;
    node->call();
  }
}

void HostEvent::synchronize() {
  if (!happened()) {
    if (const auto queue = queue_.lock()) {
      queue->require_other_task();
      queue->help_until(this);
    }
  }
  happened_.wait(0, std::memory_order_acquire);
  if (!failure_) return;
  Running::receive(failure_);
  std::rethrow_exception(failure_->error());
}

class CpuStream final : public StreamBackend {
 public:
  explicit CpuStream(const StreamOptions& options)
      : queue_(std::make_shared<Queue>(options.name)),
        worker_(
            start_thread([queue = queue_](const std::stop_token& stop) { queue->work(stop); })) {
    const std::string name = options.name.substr(0, 15);  // Linux limits thread names to 15 bytes
    pthread_setname_np(worker_.native_handle(), name.c_str());
  }
  ~CpuStream() override {
    worker_.request_stop();
    if (queue_->ends_in_own_task()) {
      worker_.detach();  // the worker keeps the queue alive
      return;
    }
    queue_->wake();
    worker_.join();
  }
  void enqueue(std::function<void()> work) override {
    queue_->push(HostEvent::Kind::work, std::move(work));
  }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    if (bytes == 0) return;
    queue_->push(HostEvent::Kind::work, [=] { std::memcpy(dst, src, bytes); });
  }
  void fill(void* dst, std::byte value, std::size_t bytes) override {
    if (bytes == 0) return;
    queue_->push(HostEvent::Kind::work,
                 [=] { std::memset(dst, std::to_integer<int>(value), bytes); });
  }
  std::shared_ptr<EventBackend> record() override {
    return queue_->push(HostEvent::Kind::always, [] {});
  }
  std::shared_ptr<EventBackend> enqueue_and_record(Task work) override {
    return queue_->push(HostEvent::Kind::work, std::move(work));
  }
  // Sets the stamp even after a failure.
  std::shared_ptr<const StampBackend> stamp() override {
    auto stamp = std::make_shared<ClockStamp>();
    queue_->push(HostEvent::Kind::always, [stamp] { stamp->take(); });
    return stamp;
  }
  void wait(std::shared_ptr<EventBackend> event, WaitReason reason) override {
    // The task has a plain pointer to the queue, which outlives its tasks. A shared_ptr would
    // create a cycle.
    queue_->push(HostEvent::Kind::work, [event = std::move(event), reason, queue = queue_.get()] {
      const auto synchronize = [&] {
        try {
          event->synchronize();
        } catch (...) {
          if (!Running::was_known()) throw;
        }
      };
      if (event->happened() || reason == WaitReason::order) return synchronize();
      struct Timer {
        Queue& queue;
        std::int64_t start = steady_ns();
        ~Timer() { queue.exposed_ns += steady_ns() - start; }
      };
      const Timer timer{*queue};
      synchronize();
    });
  }
  void synchronize() override {
    std::shared_ptr<EventBackend> end;
    try {
      end = record();
    } catch (const std::bad_alloc&) {
      queue_->drain();  // the caller may free memory that the tasks use
      throw;
    }
    end->synchronize();
  }
  std::chrono::nanoseconds exposed_communication() const override {
    return std::chrono::nanoseconds(queue_->exposed_ns.load());
  }
  void* native() noexcept override { return nullptr; }

 private:
  std::shared_ptr<Queue> queue_;
  std::jthread worker_;
};

constexpr std::size_t page = 4096;
constexpr std::size_t round_up(std::size_t bytes) { return (bytes + page - 1) / page * page; }

std::uint64_t memory_of_machine() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || bytes <= 0) return 0;
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(bytes);
}

class CpuDevice final : public DeviceBackend {
 public:
  CpuDevice() : DeviceBackend({.name = "CPU", .memory_bytes = memory_of_machine()}) {}

  void* allocate(std::size_t bytes) override {
    require_free_memory(bytes);
    void* data = std::aligned_alloc(page, round_up(bytes));
    if (data) return data;
    throw Error(ErrorCode::out_of_memory,
                "CPU memory: cannot allocate " + std::to_string(bytes) + " bytes");
  }
  void deallocate(void* data, std::size_t) noexcept override { std::free(data); }
  std::unique_ptr<StreamBackend> make_stream(const StreamOptions& options) override {
    return std::make_unique<CpuStream>(options);
  }
  DeviceOps& ops() noexcept override { return *ops_; }

 private:
  std::unique_ptr<DeviceOps> ops_ = make_ops();
};

}  // namespace
}  // namespace cpu

Device Device::cpu() { return Device(std::make_shared<cpu::CpuDevice>()); }

}  // namespace atoll_v1::atoll

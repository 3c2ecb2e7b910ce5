#include "device/host/stream.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "core/errors.hpp"
#include "core/limits.hpp"

namespace atoll_v1::atoll::host {
namespace {

// Shortest and longest time that a dozing worker thread sleeps before it checks the queue again.
// The time doubles as long as calling threads run all tasks themselves. It limits the delay of a
// task for which no thread waits.
constexpr auto first_nap = std::chrono::microseconds(50);
constexpr auto longest_nap = std::chrono::microseconds(1600);
// After this number of naps without new tasks, the worker thread stops polling and sleeps until
// another thread wakes it.
constexpr int naps_before_sleep = 10;

// The queues whose tasks this thread runs now, the innermost first: a task that waits for another
// stream can run tasks of that stream.
class Running {
 public:
  explicit Running(const Queue& queue) noexcept
      : queue_(&queue), outer_(std::exchange(innermost, this)) {}
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
    if (innermost == nullptr) return failure->tell();
    innermost->handled();
    innermost->received_ = failure;
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
    if (received_) std::exchange(received_, nullptr)->tell();
  }

  static inline thread_local Running* innermost = nullptr;

  const Queue* queue_;
  Running* outer_;
  std::shared_ptr<StreamFailure> received_;
};

}  // namespace

Queue::Queue(std::string name)
    : name_(std::move(name)),
      first_(std::make_shared<HostEvent>(HostEvent::Kind::always, Task(), std::weak_ptr<Queue>())),
      tasks_(first_.get()) {}

std::shared_ptr<HostEvent> Queue::push(HostEvent::Kind kind, Task&& task) {
  // The allocation comes before pushing_ is set, because pushing_ would stay true if it threw.
  auto event = std::make_shared<HostEvent>(kind, std::move(task), weak_from_this());
  require(!pushing_.exchange(true, std::memory_order_acquire),
          "stream {}: another thread calls it at the same time: call a stream from one thread at a "
          "time, or make a stream for each thread",
          name_);
  event->self_ = event;
  const bool worker_sleeps = tasks_.push(event.get());
  pushing_.store(false, std::memory_order_release);
  if (worker_sleeps) wake();
  return event;
}

void Queue::wake() {
  { const std::lock_guard lock(mutex_); }  // no worker can be between its check and its sleep
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
  const bool dropped = event.kind_ == HostEvent::Kind::work && failure_;
  Running running(*this);
  if (!dropped) {
    try {
      event.task_();
    } catch (...) {
      fail(running.failure(name_));
    }
  }
  {
    const DroppedTask mark(dropped ? &failure_->error() : nullptr);
    event.task_.reset();  // destroys the task's captures before any waiter wakes
  }
  event.failure_ = failure_;
  // This store must be sequentially consistent. The standard library's notify_all() starts by
  // loading its count of waiters, and that load could move before a release store; a waiter that
  // has just registered and seen the old value would then sleep forever.
  event.happened_.store(1);
  event.happened_.notify_all();
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
    if (tasks_.empty() && !tasks_.has_executor()) return;  // in this order, as in drain()
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1));  // another thread is still running tasks
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

HostStream::HostStream(const StreamOptions& options)
    : queue_(std::make_shared<Queue>(options.name)),
      worker_(start_thread([queue = queue_](const std::stop_token& stop) { queue->work(stop); })) {
  const std::string name = options.name.substr(0, 15);  // Linux limits thread names to 15 bytes
  pthread_setname_np(worker_.native_handle(), name.c_str());
}

HostStream::~HostStream() {
  worker_.request_stop();
  if (queue_->ends_in_own_task()) {
    worker_.detach();  // the worker shares the queue
    return;
  }
  queue_->wake();
  worker_.join();
}

void HostStream::enqueue(std::function<void()> work) {
  queue_->push(HostEvent::Kind::work, std::move(work));
}

void HostStream::copy(void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0) return;
  queue_->push(HostEvent::Kind::work, [=] { std::memcpy(dst, src, bytes); });
}

void HostStream::fill(void* dst, std::byte value, std::size_t bytes) {
  if (bytes == 0) return;
  queue_->push(HostEvent::Kind::work,
               [=] { std::memset(dst, std::to_integer<int>(value), bytes); });
}

std::shared_ptr<EventBackend> HostStream::record() {
  return queue_->push(HostEvent::Kind::always, [] {});
}

std::shared_ptr<EventBackend> HostStream::enqueue_and_record(Task work) {
  return queue_->push(HostEvent::Kind::work, std::move(work));
}

std::shared_ptr<const StampBackend> HostStream::stamp() {
  auto stamp = std::make_shared<ClockStamp>();
  queue_->push(HostEvent::Kind::always, [stamp] { stamp->take(); });
  return stamp;
}

void HostStream::wait(std::shared_ptr<EventBackend> event, WaitReason reason) {
  // The task has a plain pointer to the queue, which outlives its tasks. A shared_ptr would create
  // a cycle.
  queue_->push(HostEvent::Kind::work, [event = std::move(event), reason, queue = queue_.get()] {
    if (event->happened() || reason == WaitReason::order) return event->synchronize();
    struct Timer {
      Queue& queue;
      std::int64_t start = steady_ns();
      ~Timer() { queue.exposed_ns += steady_ns() - start; }
    };
    const Timer timer{*queue};
    event->synchronize();
  });
}

void HostStream::synchronize() {
  std::shared_ptr<EventBackend> end;
  try {
    end = record();
  } catch (const std::bad_alloc&) {
    queue_->drain();  // the caller may free memory that the tasks use
    throw;
  }
  end->synchronize();
}

std::chrono::nanoseconds HostStream::exposed_communication() const {
  return std::chrono::nanoseconds(queue_->exposed_ns.load());
}

}  // namespace atoll_v1::atoll::host

#include "device/host/stream.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace atoll_v1::atoll::host {
namespace {

// How often a dozing worker looks, at first and in the end: the most that work is late which nobody
// waits for. It looks less and less often while callers run all work themselves.
constexpr auto first_nap = std::chrono::microseconds(50);
constexpr auto longest_nap = std::chrono::microseconds(1600);
// Naps without any work before it sleeps until it is woken.
constexpr int naps_before_sleep = 10;

}  // namespace

void Queue::notify() {
  if (!dozing_.load(std::memory_order_relaxed)) ready_.notify_one();
}

void Queue::push(Kind kind, std::function<void()> run) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({kind, std::move(run)});
    ++pushed_;
    if (executing_) return;  // the executor looks again before it leaves
  }
  notify();
}

void Queue::run_guarded(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Queue::execute(Task& task) {
  if (task.kind == Kind::always || !error_) run_guarded(task.run);
  task.run = nullptr;  // captured resources go now, with no lock held
}

void Queue::help_until(const std::function<bool()>& done) {
  std::unique_lock lock(mutex_);
  if (executing_) return;
  executing_ = true;
  while (!tasks_.empty() && !done()) {
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    execute(task);
    lock.lock();
  }
  executing_ = false;
  const bool more = !tasks_.empty();
  lock.unlock();
  if (more) ready_.notify_one();  // also a dozing worker: somebody may wait for what is left
}

void Queue::await_ready(std::unique_lock<std::mutex>& lock, const std::stop_token& stop) {
  auto nap = first_nap;
  int quiet = 0;
  while (!ready() && !stop.stop_requested()) {
    const auto before = pushed_;
    if (dozing_) {
      if (ready_.wait_for(lock, stop, nap, [this] { return ready(); })) return;
      nap = std::min(2 * nap, longest_nap);
      quiet = pushed_ == before ? quiet + 1 : 0;
      if (quiet == naps_before_sleep) dozing_ = false;
    } else {
      ready_.wait(lock, stop, [&] { return ready() || pushed_ != before; });
      dozing_ = !ready() && !stop.stop_requested();  // woken in vain
      nap = first_nap;
      quiet = 0;
    }
  }
}

void Queue::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (true) {
    await_ready(lock, stop);
    if (ready()) dozing_ = false;
    if (tasks_.empty()) {
      if (stop.stop_requested()) return;
      continue;
    }
    if (executing_) {  // stopping, while another thread finishes the queue
      ready_.wait_for(lock, std::chrono::milliseconds(1));
      continue;
    }
    lock.unlock();
    help_until([] { return false; });
    lock.lock();
  }
}

void HostEvent::complete(std::exception_ptr error) {
  error_ = std::move(error);
  happened_.store(true, std::memory_order_release);
  happened_.notify_all();
}

void HostEvent::synchronize() {
  if (!happened()) {
    if (const auto queue = queue_.lock()) queue->help_until([this] { return happened(); });
  }
  happened_.wait(false, std::memory_order_acquire);
  if (error_) std::rethrow_exception(error_);
}

HostStream::HostStream(const StreamOptions& options)
    : queue_(std::make_shared<Queue>()),
      worker_([queue = queue_](const std::stop_token& stop) { queue->work(stop); }) {
  const std::string name = options.name.substr(0, 15);  // the kernel's limit
  pthread_setname_np(worker_.native_handle(), name.c_str());
}

HostStream::~HostStream() {
  worker_.request_stop();
  queue_->wake();
  worker_.join();
}

void HostStream::enqueue(std::function<void()> work) {
  queue_->push(Queue::Kind::work, std::move(work));
}

void HostStream::copy(void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0) return;
  enqueue([=] { std::memcpy(dst, src, bytes); });
}

void HostStream::zero(void* dst, std::size_t bytes) {
  if (bytes == 0) return;
  enqueue([=] { std::memset(dst, 0, bytes); });
}

std::shared_ptr<EventBackend> HostStream::record() {
  auto event = std::make_shared<HostEvent>(queue_);
  // The queue outlives its tasks, so a plain pointer does not make it own itself.
  queue_->push(Queue::Kind::always,
               [event, queue = queue_.get()] { event->complete(queue->error()); });
  return event;
}

std::shared_ptr<EventBackend> HostStream::enqueue_and_record(std::function<void()> work) {
  auto event = std::make_shared<HostEvent>(queue_);
  queue_->push(Queue::Kind::always,
               [event, queue = queue_.get(), work = std::move(work)]() mutable {
                 if (!queue->error()) queue->run_guarded(work);
                 work = nullptr;  // what it captured goes before anybody is told
                 event->complete(queue->error());
               });
  return event;
}

void HostStream::wait(std::shared_ptr<EventBackend> event, WaitReason reason) {
  enqueue([event = std::move(event), reason, queue = queue_.get()] {
    if (event->happened() || reason == WaitReason::order) return event->synchronize();
    const auto start = std::chrono::steady_clock::now();
    const auto account = [&] {
      queue->exposed_ns +=
          std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
    };
    try {
      event->synchronize();
    } catch (...) {
      account();
      throw;
    }
    account();
  });
}

void HostStream::synchronize() { record()->synchronize(); }

std::chrono::nanoseconds HostStream::exposed_communication() const {
  return std::chrono::nanoseconds(queue_->exposed_ns.load());
}

}  // namespace atoll_v1::atoll::host

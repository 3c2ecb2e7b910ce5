// A device that tests whether the library relies only on the device interface. Tasks of a stream
// start after random delays, so work that no event orders runs in the wrong order sooner or later.
// Fresh memory is full of NaN, so memory that was never written spoils the sums.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/backend.hpp"

namespace atoll_test {

class JitterEvent final : public atoll::EventBackend {
 public:
  bool happened() const override { return happened_; }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return happened_.load(); });
    if (error_) std::rethrow_exception(error_);
  }
  void complete(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      error_ = std::move(error);
      happened_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> happened_{false};
  std::exception_ptr error_;
};

class JitterStream final : public atoll::StreamBackend {
 public:
  explicit JitterStream(unsigned seed) : random_(seed), worker_([this] { work(); }) {}
  ~JitterStream() override {
    push({nullptr, nullptr});
    worker_.join();
  }

  void enqueue(std::function<void()> work) override { push({std::move(work), nullptr}); }
  // Profiler ranges of all streams: the labels of the ranges that have begun, and the numbers of
  // the ranges that have not ended.
  struct Ranges {
    std::mutex mutex;
    std::vector<std::string> begun;
    std::vector<std::uint64_t> open;
  };
  static Ranges& ranges() {
    static Ranges one;
    return one;
  }
  std::uint64_t begin_range(const atoll::Label& label) override {
    const std::lock_guard lock(ranges().mutex);
    ranges().begun.push_back(std::string(label.what) + " " + std::string(label.of));
    ranges().open.push_back(ranges().begun.size());
    return ranges().begun.size();
  }
  void end_range(std::uint64_t number) noexcept override {
    const std::lock_guard lock(ranges().mutex);
    std::erase(ranges().open, number);
  }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    enqueue([=] {
      if (bytes > 0) std::memmove(dst, src, bytes);
    });
  }
  void fill(void* dst, std::byte value, std::size_t bytes) override {
    enqueue([=] {
      if (bytes > 0) std::memset(dst, std::to_integer<int>(value), bytes);
    });
  }
  std::shared_ptr<atoll::EventBackend> record() override {
    auto event = std::make_shared<JitterEvent>();
    push({nullptr, event});
    return event;
  }
  void wait(std::shared_ptr<atoll::EventBackend> event, atoll::WaitReason reason) override {
    enqueue([this, event = std::move(event), reason] {
      const auto start = std::chrono::steady_clock::now();
      event->synchronize();
      if (reason == atoll::WaitReason::order) return;
      exposed_ns_ += (std::chrono::steady_clock::now() - start).count();
    });
  }
  void synchronize() override { record()->synchronize(); }
  std::chrono::nanoseconds exposed_communication() const override {
    return std::chrono::nanoseconds(exposed_ns_.load());
  }
  void* native() noexcept override { return nullptr; }

 private:
  struct Task {  // a task with neither work nor event ends the worker
    std::function<void()> work;
    std::shared_ptr<JitterEvent> event;
  };

  void push(Task task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    ready_.notify_one();
  }

  Task pop() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return !tasks_.empty(); });
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  void work() {
    std::uniform_int_distribution<int> dice(0, 9);
    std::exception_ptr error;
    for (Task task = pop(); task.work || task.event; task = pop()) {
      // Most tasks start at once, and two in ten first sleep for 200 or 400 microseconds.
      const int eyes = dice(random_);
      if (eyes >= 8) std::this_thread::sleep_for(std::chrono::microseconds((eyes - 7) * 200));
      if (task.event) {
        task.event->complete(error);
      } else if (!error) {
        try {
          task.work();
        } catch (...) {
          error = std::current_exception();
        }
      }
    }
  }

  std::mt19937 random_;  // generator of the delays, used only by the worker thread
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Task> tasks_;
  std::atomic<std::int64_t> exposed_ns_{0};
  std::thread worker_;
};

class JitterDevice final : public atoll::DeviceBackend {
 public:
  // The device's memory is CPU memory, so that the host backend can move its data.
  explicit JitterDevice(unsigned seed) : DeviceBackend({.name = "jitter"}), seed_(seed) {}
  void* allocate(std::size_t bytes) override {
    void* data = ::operator new(bytes, std::align_val_t(4096));
    std::memset(data, 0xff, bytes);  // bytes of 0xff are NaN in every floating point type
    return data;
  }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    std::memset(data, 0xff, bytes);  // fill with NaN, so that reads after deallocation are noticed
    ::operator delete(data, std::align_val_t(4096));
  }
  std::unique_ptr<atoll::StreamBackend> make_stream(const atoll::StreamOptions&) override {
    return std::make_unique<JitterStream>(seed_++);
  }
  atoll::DeviceOps& ops() noexcept override { return host_.ops(); }

 private:
  atoll::Device host_ = atoll::Device::cpu();
  std::atomic<unsigned> seed_;
};

}  // namespace atoll_test

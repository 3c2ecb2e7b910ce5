// Streams, events and stamps of a virtual device.
#pragma once

#include <cmath>
#include <memory>
#include <utility>

#include "device/backend.hpp"
#include "device/virtual/timeline.hpp"

namespace atoll_v1::atoll::simulated {

class VirtualEvent final : public EventBackend {
 public:
  VirtualEvent(std::shared_ptr<Timeline> timeline, std::shared_ptr<TimedTask> task)
      : timeline_(std::move(timeline)), task_(std::move(task)) {}
  bool happened() const override { return timeline_->poll(*task_); }
  bool peek() const override { return timeline_->end_of(*task_).has_value(); }
  void synchronize() override { timeline_->await(*task_); }
  const std::shared_ptr<TimedTask>& task() const noexcept { return task_; }

 private:
  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<TimedTask> task_;
};

class VirtualStamp final : public StampBackend {
 public:
  VirtualStamp(std::shared_ptr<Timeline> timeline, std::shared_ptr<TimedTask> task)
      : timeline_(std::move(timeline)), task_(std::move(task)) {}
  std::optional<std::int64_t> ns() const override {
    const auto end = timeline_->end_of(*task_);
    return end ? std::optional(std::llround(*end * 1e9)) : std::nullopt;
  }

 private:
  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<TimedTask> task_;
};

class VirtualStream final : public StreamBackend {
 public:
  VirtualStream(std::shared_ptr<Timeline> timeline, const DeviceOptions& options);
  ~VirtualStream() override;
  VirtualStream(const VirtualStream&) = delete;
  VirtualStream& operator=(const VirtualStream&) = delete;

  void run(TimedWork work);

  void enqueue(std::function<void()> work) override;
  void copy(void* dst, const void* src, std::size_t bytes) override;
  void fill(void* dst, std::byte value, std::size_t bytes) override;
  std::shared_ptr<EventBackend> record() override;
  std::shared_ptr<const StampBackend> stamp() override;
  void wait(std::shared_ptr<EventBackend> event, WaitReason reason) override;
  void synchronize() override;
  std::chrono::nanoseconds exposed_communication() const override;
  void* native() noexcept override { return nullptr; }

 private:
  std::shared_ptr<TimedTask> mark();

  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<Queue> queue_;
  double copy_rate_, fill_rate_;  // bytes per second
};

}  // namespace atoll_v1::atoll::simulated

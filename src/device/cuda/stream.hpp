// Streams of the `cuda` device: CUDA streams, whose host functions keep the promises of
// atoll/device.hpp about failures.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>

#include "device/backend.hpp"
#include "device/cuda/api.hpp"
#include "device/cuda/failure.hpp"

namespace atoll_v1::atoll::cuda {

// Brings times of a device's events to the steady clock. The runtime tells differences in f32
// milliseconds, so that a new point of reference is taken every few seconds.
class Clock {
 public:
  explicit Clock(int ordinal) : ordinal_(ordinal) {}

  struct Anchor {
    PooledEvent event;
    std::int64_t ns;  // of the steady clock
  };
  std::shared_ptr<const Anchor> anchor();

 private:
  int ordinal_;
  std::mutex mutex_;
  std::shared_ptr<const Anchor> anchor_;
};

class CudaStream final : public StreamBackend {
 public:
  CudaStream(int ordinal, const StreamOptions& options, std::shared_ptr<Clock> clock);
  ~CudaStream() override;
  void enqueue(std::function<void()> work) override;
  void copy(void* dst, const void* src, std::size_t bytes) override;
  void zero(void* dst, std::size_t bytes) override;
  void fill(void* dst, std::byte value, std::size_t bytes) override;
  std::shared_ptr<EventBackend> record() override;
  std::shared_ptr<const StampBackend> stamp() override;
  void wait(std::shared_ptr<EventBackend> event, WaitReason reason) override;
  void synchronize() override;
  std::chrono::nanoseconds exposed_communication() const override;
  void* native() noexcept override { return stream_; }
  // Ranges of NVTX, where its header was there: seen by Nsight Systems and its like.
  std::uint64_t begin_range(const Label& label) override;
  void end_range(std::uint64_t number) noexcept override;

 private:
  struct Call;
  struct Wait {
    PooledEvent begin, end;
  };
  void reclaim();
  void add_waits() const;

  int ordinal_;
  std::shared_ptr<Clock> clock_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  std::uint64_t position_ = 0;
  // Closures live until a thread of ours takes them away: what they own may call the runtime, which
  // a host function must not.
  std::deque<std::unique_ptr<Call>> calls_;
  mutable std::deque<Wait> waits_;  // whose times are not known yet
  mutable std::chrono::nanoseconds exposed_{0};
};

}  // namespace atoll_v1::atoll::cuda

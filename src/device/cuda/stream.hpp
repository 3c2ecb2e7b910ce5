// Streams of the cuda device: CUDA streams with the error handling that atoll/device.hpp promises.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>

#include "device/backend.hpp"
#include "device/cuda/api.hpp"
#include "device/cuda/failure.hpp"

namespace atoll_v1::atoll::cuda {

// Converts the times of CUDA events to the steady clock. CUDA returns only differences between
// events, in f32 milliseconds, so a new reference event is recorded every few seconds to stay
// precise.
class Clock {
 public:
  explicit Clock(int ordinal) : ordinal_(ordinal) {}

  struct Anchor {
    PooledEvent event;
    std::int64_t ns;  // time of the event on the steady clock
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
  // Uses a stream of the caller, who destroys it; null means the legacy default stream.
  CudaStream(int ordinal, cudaStream_t stream, std::shared_ptr<Clock> clock);
  ~CudaStream() override;
  void enqueue(std::function<void()> work) override;
  void copy(void* dst, const void* src, std::size_t bytes) override;
  void fill(void* dst, std::byte value, std::size_t bytes) override;
  std::shared_ptr<EventBackend> record() override;
  std::shared_ptr<const StampBackend> stamp() override;
  void wait(std::shared_ptr<EventBackend> event, WaitReason reason) override;
  void synchronize() override;
  std::chrono::nanoseconds exposed_communication() const override;
  void* native() noexcept override { return stream_; }
  void launch(const std::function<void(void*)>& work) override;
  void record_native(void* event) override;
  void wait_native(void* event) override;
  // NVTX ranges for profilers such as Nsight Systems, if the NVTX header was present at build time.
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
  bool owns_stream_ = true;
  std::shared_ptr<Failure> failure_;
  std::uint64_t position_ = 0;
  // Host functions of the stream. The thread that uses the stream destroys them after they have
  // run: destroying their captures may call CUDA, which a host function must not do.
  std::deque<std::unique_ptr<Call>> calls_;
  mutable std::deque<Wait> waits_;  // waits of this stream that have not ended yet
  mutable std::chrono::nanoseconds exposed_{0};
};

}  // namespace atoll_v1::atoll::cuda

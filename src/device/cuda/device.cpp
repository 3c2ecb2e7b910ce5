// The cuda device: one GPU of this process, and CUDA streams with the error handling that
// atoll/device.hpp promises. The CUDA runtime is linked statically and loads the driver at its
// first use, so the same binary also runs on machines without a driver.
#include <cuda_runtime.h>
#include <fmt/format.h>
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atoll/cuda/environment.hpp"
#include "atoll/cuda/runtime.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "device/backend.hpp"
#include "device/cuda/failure.hpp"
#include "device/cuda/ops.hpp"

namespace atoll_v1::atoll {
namespace cuda {
namespace {

constexpr const char* queues_variable = "CUDA_DEVICE_MAX_CONNECTIONS";

// Formats a UUID as `nvidia-smi -L` does.
std::string to_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

DeviceInfo info_of(int ordinal) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal),
        fmt::format("cudaGetDeviceProperties({})", ordinal));
  return {.kind = DeviceKind::cuda,
          .name = fmt::format("cuda:{} ({})", ordinal, properties.name),
          .ordinal = ordinal,
          .uuid = to_text(properties.uuid),
          .pci_address = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                     properties.pciBusID, properties.pciDeviceID),
          .memory_bytes = properties.totalGlobalMem};
}

// A CUDA event from a pool of unused ones, to which it returns when destroyed. Creating an event
// costs more than recording one.
class PooledEvent {
 public:
  enum class Kind {
    order,  // event without a time stamp, so that waits are cheaper
    time
  };
  PooledEvent(int ordinal, Kind kind) : ordinal_(ordinal), kind_(kind) {
    {
      const std::lock_guard lock(pool().mutex);
      auto& free = pool().free[{ordinal, kind}];
      if (!free.empty()) {
        event_ = free.back();
        free.pop_back();
        return;
      }
    }
    const Current current(ordinal);
    const unsigned flags = kind == Kind::time ? cudaEventDefault : cudaEventDisableTiming;
    check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
  }
  PooledEvent(PooledEvent&& other) noexcept
      : ordinal_(other.ordinal_),
        kind_(other.kind_),
        event_(std::exchange(other.event_, nullptr)) {}
  PooledEvent& operator=(PooledEvent&&) = delete;
  ~PooledEvent() {
    if (!event_) return;
    const std::lock_guard lock(pool().mutex);
    pool().free[{ordinal_, kind_}].push_back(event_);
  }

  cudaEvent_t get() const noexcept { return event_; }
  int ordinal() const noexcept { return ordinal_; }
  // Returns true once the GPU has reached the last cudaEventRecord() of the event.
  bool happened() const {
    const Current current(ordinal_);
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // clears cudaErrorNotReady, which is no failure
      return false;
    }
    check(status, "cudaEventQuery");
    return true;
  }

 private:
  struct Pool {
    std::mutex mutex;
    // Unused events by device and kind.
    std::map<std::pair<int, Kind>, std::vector<cudaEvent_t>> free;
  };
  // The pool is never destroyed, because the CUDA runtime may end first.
  static Pool& pool() {
    static auto* const pool = new Pool;
    return *pool;
  }

  int ordinal_;
  Kind kind_;
  cudaEvent_t event_ = nullptr;
};

std::chrono::nanoseconds between(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  return std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(ms) * 1e6));
}

class CudaEvent final : public EventBackend {
 public:
  CudaEvent(int ordinal, std::shared_ptr<Failure> failure, std::uint64_t position,
            std::uint64_t moment)
      : event_(ordinal, PooledEvent::Kind::order),
        failure_(std::move(failure)),
        position_(position),
        moment_(moment) {}
  cudaEvent_t get() const noexcept { return event_.get(); }
  const std::shared_ptr<Failure>& failure() const noexcept { return failure_; }
  std::uint64_t position() const noexcept { return position_; }

  bool happened() const override { return event_.happened(); }
  void synchronize() override {
    const Current current(event_.ordinal());
    check(cudaEventSynchronize(event_.get()), "cudaEventSynchronize");
    failure_->check(position_, moment_);
  }
  void fail(std::exception_ptr error) override { failure_->fail(position_, error); }
  void delay_native(void* stream) override {
    const Current current(event_.ordinal());
    check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event_.get(), 0),
          "cudaStreamWaitEvent");
  }

 private:
  PooledEvent event_;
  std::shared_ptr<Failure> failure_;
  std::uint64_t position_;
  std::uint64_t moment_;  // time at which the work before the event was enqueued
};

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
  std::shared_ptr<const Anchor> anchor() {
    // An f32 stores 5 s in milliseconds with an error below 0.5 us.
    constexpr std::int64_t fresh_ns = 5'000'000'000;
    const std::lock_guard lock(mutex_);
    if (anchor_ && steady_ns() - anchor_->ns < fresh_ns) return anchor_;
    const Current current(ordinal_);
    cudaStream_t created = nullptr;
    check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "cudaStreamCreate");
    const std::unique_ptr<CUstream_st, decltype(&cudaStreamDestroy)> idle(created,
                                                                          cudaStreamDestroy);
    // The event happens between two readings of the CPU clock. The second reading can be late, so
    // the closest pair of several attempts is used.
    constexpr int attempts = 5;
    constexpr std::int64_t good_ns = 50'000;
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < attempts && best > good_ns; ++i) {
      PooledEvent event(ordinal_, PooledEvent::Kind::time);
      const std::int64_t before = steady_ns();
      check(cudaEventRecord(event.get(), idle.get()), "cudaEventRecord");
      check(cudaEventSynchronize(event.get()), "cudaEventSynchronize");
      const std::int64_t took = steady_ns() - before;
      if (took >= best) continue;
      best = took;
      anchor_ = std::make_shared<const Anchor>(Anchor{std::move(event), before + took / 2});
    }
    return anchor_;
  }

 private:
  int ordinal_;
  std::mutex mutex_;
  std::shared_ptr<const Anchor> anchor_;
};

class CudaStamp final : public StampBackend {
 public:
  CudaStamp(int ordinal, std::shared_ptr<const Clock::Anchor> anchor)
      : event_(ordinal, PooledEvent::Kind::time), anchor_(std::move(anchor)) {}
  cudaEvent_t get() const noexcept { return event_.get(); }

  std::optional<std::int64_t> ns() const override {
    if (!event_.happened()) return std::nullopt;
    return anchor_->ns + between(anchor_->event.get(), event_.get()).count();
  }

 private:
  PooledEvent event_;
  std::shared_ptr<const Clock::Anchor> anchor_;
};

class CudaStream final : public StreamBackend {
 public:
  CudaStream(int ordinal, const StreamOptions& options, std::shared_ptr<Clock> clock)
      : ordinal_(ordinal),
        clock_(std::move(clock)),
        failure_(std::make_shared<Failure>(options.name)) {
    const Current current(ordinal_);
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    const int priority = options.priority == StreamPriority::high ? greatest : least;
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
          "cudaStreamCreateWithPriority");
  }

  // Uses a stream of the caller, who destroys it; null means the legacy default stream.
  CudaStream(int ordinal, cudaStream_t stream, std::shared_ptr<Clock> clock)
      : ordinal_(ordinal),
        clock_(std::move(clock)),
        stream_(stream == nullptr ? cudaStreamLegacy : stream),
        owns_stream_(false),
        failure_(std::make_shared<Failure>("of the caller")) {
    const Current current(ordinal_);
    const cudaError_t status = cudaStreamQuery(stream_);  // fails for a stream of another GPU
    if (status != cudaErrorNotReady) check(status, "wrap_stream: cudaStreamQuery");
  }

  ~CudaStream() override {
    const Current current(ordinal_, std::nothrow);
    const cudaError_t status = cudaStreamSynchronize(stream_);
    if (status != cudaSuccess) {
      log::error("cuda: a stream failed before it was destroyed: {}", cudaGetErrorName(status));
      // Leaks the host functions of the stream, because the failed GPU may still run them.
      for (auto& call : calls_) static_cast<void>(call.release());
    }
    failure_->close();
    if (owns_stream_) cudaStreamDestroy(stream_);
  }

  void enqueue(std::function<void()> work) override {
    const Current current(ordinal_);
    reclaim();
    auto call = std::make_unique<Call>();
    call->work = std::move(work);
    call->failure = failure_;
    const std::lock_guard lock(mutex_);
    call->position = add_work();
    call->enqueued_at = last_work_;
    check(cudaLaunchHostFunc(stream_, Call::run, call.get()), "cudaLaunchHostFunc");
    calls_.push_back(std::move(call));
  }

  void copy(void* dst, const void* src, std::size_t bytes) override {
    if (bytes == 0) return;
    const Current current(ordinal_);
    add_work();
    check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }

  void fill(void* dst, std::byte value, std::size_t bytes) override {
    if (bytes == 0) return;
    const Current current(ordinal_);
    add_work();
    check(cudaMemsetAsync(dst, std::to_integer<int>(value), bytes, stream_), "cudaMemsetAsync");
  }

  std::shared_ptr<EventBackend> record() override {
    const Current current(ordinal_);
    // Recording counts as an operation of the stream, so that later failures do not affect the
    // event.
    auto event = std::make_shared<CudaEvent>(ordinal_, failure_, ++position_, last_work_);
    check(cudaEventRecord(event->get(), stream_), "cudaEventRecord");
    return event;
  }

  std::shared_ptr<const StampBackend> stamp() override {
    const Current current(ordinal_);
    auto stamp = std::make_shared<CudaStamp>(ordinal_, clock_->anchor());
    check(cudaEventRecord(stamp->get(), stream_), "cudaEventRecord");
    return stamp;
  }

  void wait(std::shared_ptr<EventBackend> event, WaitReason reason) override {
    const Current current(ordinal_);
    auto* const known = dynamic_cast<CudaEvent*>(event.get());
    require(known != nullptr, "cuda: a CUDA stream can only wait for events of CUDA streams");
    failure_->follow(add_work(), known->failure(), known->position());
    const auto pass = [&] {
      check(cudaStreamWaitEvent(stream_, known->get(), 0), "cudaStreamWaitEvent");
    };
    if (reason != WaitReason::communication) return pass();
    Wait wait{{ordinal_, PooledEvent::Kind::time}, {ordinal_, PooledEvent::Kind::time}};
    check(cudaEventRecord(wait.begin.get(), stream_), "cudaEventRecord");
    pass();
    check(cudaEventRecord(wait.end.get(), stream_), "cudaEventRecord");
    {
      const std::lock_guard lock(mutex_);
      waits_.push_back(std::move(wait));
    }
    add_waits();
  }

  void launch(const std::function<void(void*)>& work) override {
    const Current current(ordinal_);
    add_work();
    work(stream_);
  }

  void record_native(void* event) override {
    const Current current(ordinal_);
    ++position_;
    check(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_), "cudaEventRecord");
  }

  void wait_native(void* event) override {
    const Current current(ordinal_);
    add_work();
    check(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(event), 0), "cudaStreamWaitEvent");
  }

  void synchronize() override {
    const Current current(ordinal_);
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    reclaim();
    failure_->check(position_, last_work_);
  }

  std::chrono::nanoseconds exposed_communication() const override {
    add_waits();
    const std::lock_guard lock(mutex_);
    return exposed_;
  }

  void* native() noexcept override { return stream_; }
  // NVTX ranges for profilers such as Nsight Systems, if the NVTX header was present at build time.
  std::uint64_t begin_range([[maybe_unused]] const Label& label) override {
#if __has_include(<nvtx3/nvToolsExt.h>)
    char text[128];  // no allocation, because a range must cost little without a profiler
    *fmt::format_to_n(text, sizeof text - 1, "{} {}", label.what, label.of).out = '\0';
    return nvtxRangeStartA(text);
#else
    return 0;
#endif
  }

  void end_range([[maybe_unused]] std::uint64_t number) noexcept override {
#if __has_include(<nvtx3/nvToolsExt.h>)
    nvtxRangeEnd(number);
#endif
  }

 private:
  struct Call {
    std::function<void()> work;
    std::shared_ptr<Failure> failure;
    std::uint64_t position;
    std::uint64_t enqueued_at;
    std::atomic<bool> done{false};

    static void CUDART_CB run(void* self) {
      auto& call = *static_cast<Call*>(self);
      if (!call.failure->before(call.position, call.enqueued_at)) {
        try {
          call.work();
        } catch (...) {
          call.failure->fail(call.position, std::current_exception());
        }
      }
      call.done.store(true, std::memory_order_release);
    }
  };
  struct Wait {
    PooledEvent begin, end;
  };
  // Returns the position of the work that the caller enqueues now.
  std::uint64_t add_work() {
    last_work_ = StreamFailure::now();
    return ++position_;
  }
  // Destroys the calls that have run, outside the lock: their captures may use this stream.
  void reclaim() {
    std::vector<std::unique_ptr<Call>> over;
    const std::lock_guard lock(mutex_);
    while (!calls_.empty() && calls_.front()->done.load(std::memory_order_acquire)) {
      over.push_back(std::move(calls_.front()));
      calls_.pop_front();
    }
  }

  void add_waits() const {
    const Current current(ordinal_);
    const std::lock_guard lock(mutex_);
    while (!waits_.empty() && waits_.front().end.happened()) {
      exposed_ += between(waits_.front().begin.get(), waits_.front().end.get());
      waits_.pop_front();
    }
  }

  int ordinal_;
  std::shared_ptr<Clock> clock_;
  cudaStream_t stream_ = nullptr;
  bool owns_stream_ = true;
  std::shared_ptr<Failure> failure_;
  std::atomic<std::uint64_t> position_{0};
  std::atomic<std::uint64_t> last_work_{0};  // time at which the newest work was enqueued
  mutable std::mutex mutex_;                 // guards the members below
  // Host functions of the stream. A thread that uses the stream destroys them after they have run:
  // destroying their captures may call CUDA, which a host function must not do.
  std::deque<std::unique_ptr<Call>> calls_;
  mutable std::deque<Wait> waits_;  // waits of this stream that have not ended yet
  mutable std::chrono::nanoseconds exposed_{0};
};

class CudaDevice final : public DeviceBackend {
 public:
  explicit CudaDevice(int ordinal)
      : DeviceBackend(info_of(ordinal)),
        ordinal_(ordinal),
        clock_(std::make_shared<Clock>(ordinal)),
        ops_(ordinal) {}

  void* allocate(std::size_t bytes) override {
    const Current current(ordinal_);
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears the error, which the next call would otherwise report
      std::size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      throw make_error(ErrorCode::out_of_memory, "{}: cannot allocate {} bytes; {} of {} are free",
                       info().name, bytes, free, total);
    }
    check(status, "cudaMalloc");
    return data;
  }

  void deallocate(void* data, std::size_t) noexcept override {
    const Current current(ordinal_, std::nothrow);
    cudaFree(data);
  }

  void* allocate_staging(std::size_t bytes) override {
    const Current current(ordinal_);
    void* data = nullptr;
    check(cudaHostAlloc(&data, bytes, cudaHostAllocDefault),
          fmt::format("pinned CPU memory: cannot allocate {} bytes", bytes));
    return data;
  }

  void deallocate_staging(void* data) noexcept override {
    const Current current(ordinal_, std::nothrow);
    cudaFreeHost(data);
  }

  std::unique_ptr<StreamBackend> make_stream(const StreamOptions& options) override {
    return std::make_unique<CudaStream>(ordinal_, options, clock_);
  }
  std::unique_ptr<StreamBackend> wrap_stream(void* native, const StreamOptions&) override {
    return std::make_unique<CudaStream>(ordinal_, static_cast<cudaStream_t>(native), clock_);
  }
  DeviceOps& ops() noexcept override { return ops_; }

 private:
  int ordinal_;
  std::shared_ptr<Clock> clock_;
  CudaOps ops_;
};

// Requests 32 hardware queues. By default the streams of a GPU share 8, and work in a queue waits
// for the work before it, whatever its stream. An engine, NCCL and the trainer have 20 streams or
// so. The driver reads CUDA_DEVICE_MAX_CONNECTIONS when it makes the first context.
void request_queues() noexcept {
  [[maybe_unused]] static const bool once = [] {
    if (std::getenv(queues_variable) != nullptr) return true;  // keeps the user's value
    atoll_abi::add_to_environment({std::string(queues_variable) + "=32"});
    log::debug("{}=32: a hardware queue for each stream of a GPU", queues_variable);
    return true;
  }();
}

}  // namespace
}  // namespace cuda

void Device::request_gpu_queues() noexcept { cuda::request_queues(); }

int Device::cuda_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // clears the error of a missing driver
  return 0;
}

Device Device::cuda(int ordinal) {
  const int count = cuda_count();
  require(ordinal >= 0 && ordinal < count, ErrorCode::not_found,
          "cuda:{}: no such GPU; {} are visible (check the driver and CUDA_VISIBLE_DEVICES)",
          ordinal, count);
  return Device(std::make_shared<cuda::CudaDevice>(ordinal));
}

}  // namespace atoll_v1::atoll

#include "device/cuda/stream.hpp"

#include <fmt/format.h>
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

#include <atomic>
#include <limits>
#include <optional>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll::cuda {
namespace {

std::chrono::nanoseconds between(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  return std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(ms) * 1e6));
}

class CudaEvent final : public EventBackend {
 public:
  CudaEvent(int ordinal, std::shared_ptr<Failure> failure, std::uint64_t position)
      : event_(ordinal, PooledEvent::Kind::order),
        failure_(std::move(failure)),
        position_(position) {}
  cudaEvent_t get() const noexcept { return event_.get(); }
  const std::shared_ptr<Failure>& failure() const noexcept { return failure_; }
  std::uint64_t position() const noexcept { return position_; }

  bool happened() const override { return event_.happened(); }
  void synchronize() override {
    const Current current(event_.ordinal());
    check(cudaEventSynchronize(event_.get()), "cudaEventSynchronize");
    failure_->check(position_);
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

}  // namespace

std::shared_ptr<const Clock::Anchor> Clock::anchor() {
  constexpr std::int64_t fresh_ns =
      5'000'000'000;  // an f32 stores 5 s in milliseconds with an error below 0.5 us
  const std::lock_guard lock(mutex_);
  if (anchor_ && steady_ns() - anchor_->ns < fresh_ns) return anchor_;
  const Current current(ordinal_);
  cudaStream_t created = nullptr;
  check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "cudaStreamCreate");
  const std::unique_ptr<CUstream_st, decltype(&cudaStreamDestroy)> idle(created, cudaStreamDestroy);
  // The event happens between two readings of the host clock. The second reading can be late, so
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

struct CudaStream::Call {
  std::function<void()> work;
  std::shared_ptr<Failure> failure;
  std::uint64_t position;
  std::atomic<bool> done{false};

  static void CUDART_CB run(void* self) {
    auto& call = *static_cast<Call*>(self);
    if (!call.failure->before(call.position)) {
      try {
        call.work();
      } catch (...) {
        call.failure->fail(call.position, std::current_exception());
      }
    }
    call.done.store(true, std::memory_order_release);
  }
};

CudaStream::CudaStream(int ordinal, const StreamOptions& options, std::shared_ptr<Clock> clock)
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

CudaStream::CudaStream(int ordinal, cudaStream_t stream, std::shared_ptr<Clock> clock)
    : ordinal_(ordinal),
      clock_(std::move(clock)),
      stream_(stream == nullptr ? cudaStreamLegacy : stream),
      owns_stream_(false),
      failure_(std::make_shared<Failure>("of the caller")) {
  const Current current(ordinal_);
  const cudaError_t status = cudaStreamQuery(stream_);  // fails for a stream of another GPU
  if (status != cudaErrorNotReady) check(status, "wrap_stream: cudaStreamQuery");
}

CudaStream::~CudaStream() {
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

void CudaStream::reclaim() {
  while (!calls_.empty() && calls_.front()->done.load(std::memory_order_acquire)) {
    calls_.pop_front();
  }
}

void CudaStream::enqueue(std::function<void()> work) {
  const Current current(ordinal_);
  reclaim();
  auto call = std::make_unique<Call>();
  call->work = std::move(work);
  call->failure = failure_;
  call->position = ++position_;
  check(cudaLaunchHostFunc(stream_, Call::run, call.get()), "cudaLaunchHostFunc");
  calls_.push_back(std::move(call));
}

void CudaStream::copy(void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0) return;
  const Current current(ordinal_);
  ++position_;
  check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
}

void CudaStream::fill(void* dst, std::byte value, std::size_t bytes) {
  if (bytes == 0) return;
  const Current current(ordinal_);
  ++position_;
  check(cudaMemsetAsync(dst, std::to_integer<int>(value), bytes, stream_), "cudaMemsetAsync");
}

std::shared_ptr<EventBackend> CudaStream::record() {
  const Current current(ordinal_);
  // Recording counts as an operation of the stream, so that later failures do not affect the event.
  auto event = std::make_shared<CudaEvent>(ordinal_, failure_, ++position_);
  check(cudaEventRecord(event->get(), stream_), "cudaEventRecord");
  return event;
}

std::shared_ptr<const StampBackend> CudaStream::stamp() {
  const Current current(ordinal_);
  auto stamp = std::make_shared<CudaStamp>(ordinal_, clock_->anchor());
  check(cudaEventRecord(stamp->get(), stream_), "cudaEventRecord");
  return stamp;
}

void CudaStream::wait(std::shared_ptr<EventBackend> event, WaitReason reason) {
  const Current current(ordinal_);
  auto* const known = dynamic_cast<CudaEvent*>(event.get());
  require(known != nullptr, "cuda: a CUDA stream can only wait for events of CUDA streams");
  failure_->follow(++position_, known->failure(), known->position());
  const auto pass = [&] {
    check(cudaStreamWaitEvent(stream_, known->get(), 0), "cudaStreamWaitEvent");
  };
  if (reason != WaitReason::communication) return pass();
  Wait wait{{ordinal_, PooledEvent::Kind::time}, {ordinal_, PooledEvent::Kind::time}};
  check(cudaEventRecord(wait.begin.get(), stream_), "cudaEventRecord");
  pass();
  check(cudaEventRecord(wait.end.get(), stream_), "cudaEventRecord");
  waits_.push_back(std::move(wait));
  add_waits();
}

void CudaStream::launch(const std::function<void(void*)>& work) {
  const Current current(ordinal_);
  ++position_;
  work(stream_);
}

void CudaStream::record_native(void* event) {
  const Current current(ordinal_);
  ++position_;
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_), "cudaEventRecord");
}

void CudaStream::wait_native(void* event) {
  const Current current(ordinal_);
  ++position_;
  check(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(event), 0), "cudaStreamWaitEvent");
}

void CudaStream::synchronize() {
  const Current current(ordinal_);
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  reclaim();
  failure_->check(position_);
}

void CudaStream::add_waits() const {
  const Current current(ordinal_);
  while (!waits_.empty() && waits_.front().end.happened()) {
    exposed_ += between(waits_.front().begin.get(), waits_.front().end.get());
    waits_.pop_front();
  }
}

std::chrono::nanoseconds CudaStream::exposed_communication() const {
  add_waits();
  return exposed_;
}

std::uint64_t CudaStream::begin_range([[maybe_unused]] const Label& label) {
#if __has_include(<nvtx3/nvToolsExt.h>)
  char text[128];  // no allocation, because a range must cost little without a profiler
  *fmt::format_to_n(text, sizeof text - 1, "{} {}", label.what, label.of).out = '\0';
  return nvtxRangeStartA(text);
#else
  return 0;
#endif
}

void CudaStream::end_range([[maybe_unused]] std::uint64_t number) noexcept {
#if __has_include(<nvtx3/nvToolsExt.h>)
  nvtxRangeEnd(number);
#endif
}

}  // namespace atoll_v1::atoll::cuda

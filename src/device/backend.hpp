// The interfaces that a kind of device implements. Each subfolder holds one implementation; tests
// add another, which proves that no caller depends on the CPU device. libatoll exports the
// interfaces for libatoll_planner, which adds simulated devices and comes from the same build.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/device.hpp"
#include "device/task.hpp"

namespace atoll_v1::atoll {

// Name of an operation or of the content of memory in messages, such as "gathered layers.0".
struct Label {
  std::string_view what;
  std::string_view of{};
};

class ATOLL_API EventBackend {
 public:
  virtual ~EventBackend() = default;
  virtual bool happened() const = 0;
  // Like happened(), for callers that do not rely on the order: the lifetime checker does not count
  // the answer as a synchronization of the host with the event.
  virtual bool peek() const { return happened(); }
  // Blocks until the event has happened; throws the error of its stream if that failed before it.
  virtual void synchronize() = 0;
  // Calls `callback` once, when the event has happened: on the thread that ends the work before it,
  // or at once on this thread if it has happened. The callback must not throw or wait for streams.
  // Returns false, and drops the callback, on devices that cannot call back.
  virtual bool then([[maybe_unused]] std::function<void()> callback) { return false; }
  // Marks the event and its stream as failed. Used on GPUs when a caller learns that work before
  // the event has failed; on CPUs, tasks report failures by throwing.
  virtual void fail([[maybe_unused]] std::exception_ptr error) {}
  // Makes a stream of the caller, such as a cudaStream_t, wait for the event.
  virtual void delay_native(void* stream);
};

class StampBackend {
 public:
  virtual ~StampBackend() = default;
  virtual std::optional<std::int64_t> ns() const = 0;  // empty until the time is known
};

inline std::int64_t steady_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// A time stamp of the CPU's clock. take() reads the clock; a task of the stream calls it.
class ClockStamp final : public StampBackend {
 public:
  void take() noexcept { ns_.store(steady_ns(), std::memory_order_release); }
  std::optional<std::int64_t> ns() const override {
    const std::int64_t ns = ns_.load(std::memory_order_acquire);
    return ns == unknown ? std::nullopt : std::optional(ns);
  }

 private:
  static constexpr std::int64_t unknown = -1;
  std::atomic<std::int64_t> ns_{unknown};
};

// Work of a simulated stream: seconds before it uses resources, seconds that it takes alone, and
// the share of each resource that it uses meanwhile (simulated::Use).
struct ModelledWork {
  std::string_view name;
  double latency = 0, seconds = 0;
  double compute = 0, intra = 0, inter = 0;
};

class ATOLL_API StreamBackend {
 public:
  virtual ~StreamBackend() = default;  // waits until all enqueued work is done
  virtual void enqueue(std::function<void()> work) = 0;
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void fill(void* dst, std::byte value, std::size_t bytes) = 0;
  virtual std::shared_ptr<EventBackend> record() = 0;
  virtual std::shared_ptr<EventBackend> enqueue_and_record(Task work) {
    enqueue([task = std::make_shared<Task>(std::move(work))] { (*task)(); });
    return record();
  }
  // Reads the CPU's clock in an enqueued function. Devices with their own timers override this.
  virtual std::shared_ptr<const StampBackend> stamp();
  virtual void wait(std::shared_ptr<EventBackend> event, WaitReason reason) = 0;
  virtual void synchronize() = 0;
  virtual std::chrono::nanoseconds exposed_communication() const = 0;
  virtual DeviceKind kind() const noexcept { return DeviceKind::cpu; }
  // Enqueues work that takes modelled time. Streams of real devices throw Error(unsupported).
  virtual void take_time(const ModelledWork& work);
  virtual void* native() noexcept = 0;  // returns the cudaStream_t on a GPU, and null on CPUs
  // These functions implement those of atoll/cuda.hpp. On streams that are not on a GPU they throw
  // Error(unsupported).
  virtual void launch(const std::function<void(void*)>& work);
  virtual void record_native(void* event);
  virtual void wait_native(void* event);
  // Starts a range that names, for profilers, the work that the CPU enqueues on this stream. The
  // range ends when end_range() is called with the returned number.
  virtual std::uint64_t begin_range([[maybe_unused]] const Label& label) { return 0; }
  virtual void end_range([[maybe_unused]] std::uint64_t number) noexcept {}

  // True if use() and hold() inform the lifetime checker (checked/). Other streams ignore them.
  bool checks_lifetimes() const noexcept { return checks_lifetimes_; }
  // use() declares that the work enqueued next uses this memory. If `content` is not empty, the
  // work expects the memory to hold that content.
  virtual void use([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes,
                   [[maybe_unused]] Access access, [[maybe_unused]] Label by,
                   [[maybe_unused]] Label content) {}
  // From this point of the stream on, the memory holds `content`. If `content` is empty, the
  // lifetime of the memory ends and it may not be used.
  virtual void hold([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes,
                    [[maybe_unused]] Label content) {}

 protected:
  explicit StreamBackend(bool checks_lifetimes = false) noexcept
      : checks_lifetimes_(checks_lifetimes) {}

 private:
  bool checks_lifetimes_;
};

// Names, for profilers, the work that is enqueued on a stream during a scope.
class Range {
 public:
  Range(StreamBackend& stream, const Label& label)
      : stream_(stream), number_(stream.begin_range(label)) {}
  ~Range() { stream_.end_range(number_); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  StreamBackend& stream_;
  std::uint64_t number_;
};

// A part of guarded memory, with the name that it has in messages.
struct GuardedPart {
  std::size_t offset = 0, bytes = 0;
  std::string name;
};

// The accesses that a GuardedMapping allows, and its messages about all other accesses. A message
// is the name of the part of memory, followed by one of the texts `early`, `late` and `written`.
struct GuardRule {
  Access access = Access::read;  // the access that allow() permits; a write includes reads
  std::vector<GuardedPart> parts{};
  std::string early{}, late{}, written{};
  // Receives the message before the process ends.
  std::function<void(const std::string&)> on_fault{};
};

// A second mapping of CPU memory. The mapping may be used from allow() to forbid(). Any other
// access prints a message and ends the process by SIGSEGV. The message has the text
// GuardRule::early between begin() and end(), and GuardRule::late at other times. A write from
// allow() to forbid() under Access::read has the text GuardRule::written.
class GuardedMapping {
 public:
  virtual ~GuardedMapping() = default;
  virtual void* data() const noexcept = 0;  // the address of the memory in this mapping
  // The host calls begin() before it gives the address to a caller, and end() when the caller may
  // no longer use it. Tasks of a stream call allow() and forbid().
  virtual void begin() noexcept = 0;
  virtual void end() noexcept = 0;
  virtual void allow() noexcept = 0;
  virtual void forbid() noexcept = 0;
};

// Counts the allocated bytes of a device, and the largest number so far. Any thread may call any
// function.
class AllocationCount {
 public:
  // A negative number of bytes means that memory was freed.
  void add(std::ptrdiff_t bytes) noexcept {
    // Unsigned wrap-around subtracts if `bytes` is negative.
    const std::size_t now = now_ += static_cast<std::size_t>(bytes);
    std::size_t peak = peak_.load();
    while (bytes > 0 && now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  std::size_t now() const noexcept { return now_; }
  std::size_t peak() const noexcept { return peak_; }

 private:
  std::atomic<std::size_t> now_{0};
  std::atomic<std::size_t> peak_{0};
};

// The properties that Device reports; they never change.
struct DeviceInfo {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;
  int ordinal = -1;
  std::string uuid{};
  std::string pci_address{};
  std::uint64_t memory_bytes = 0;
  std::string links{};  // the model of the links of a simulated device, as text
};

class ATOLL_API DeviceBackend {
 public:
  explicit DeviceBackend(DeviceInfo info) : info_(std::move(info)) {}
  virtual ~DeviceBackend() = default;
  const DeviceInfo& info() const noexcept { return info_; }
  virtual void* allocate(std::size_t bytes) = 0;  // throws Error(out_of_memory) on failure
  virtual void deallocate(void* data, std::size_t bytes) noexcept = 0;
  // Allocates CPU memory that the device copies to and from without blocking the caller; throws
  // Error(out_of_memory).
  virtual void* allocate_staging(std::size_t bytes);
  virtual void deallocate_staging(void* data) noexcept;
  // Announces memory of this device that streams will use, and the end of that use.
  // Device::allocate announces the memory that it allocates; communicators announce the memory of
  // their backends. Announced memory counts as allocated_bytes().
  virtual void adopt([[maybe_unused]] void* data, std::size_t bytes) {
    allocations().add(static_cast<std::ptrdiff_t>(bytes));
  }
  virtual void disown([[maybe_unused]] void* data, std::size_t bytes) noexcept {
    allocations().add(-static_cast<std::ptrdiff_t>(bytes));
  }
  // Maps memory of this device a second time, guarded by `rule`. Returns null on devices other than
  // the checked CPU device, and for memory that cannot be mapped twice.
  virtual std::shared_ptr<GuardedMapping> guard([[maybe_unused]] void* data,
                                                [[maybe_unused]] std::size_t bytes,
                                                [[maybe_unused]] GuardRule rule) {
    return nullptr;
  }
  virtual AllocationCount& allocations() noexcept { return allocations_; }
  virtual std::unique_ptr<StreamBackend> make_stream(const StreamOptions& options) = 0;
  // Makes a stream of a native stream that the caller owns. Devices without native streams throw
  // Error(unsupported).
  virtual std::unique_ptr<StreamBackend> wrap_stream(void* native, const StreamOptions& options);
  virtual DeviceOps& ops() noexcept = 0;

 private:
  DeviceInfo info_;
  AllocationCount allocations_;
};

// Returns the kind of device that a stream belongs to.
inline DeviceKind kind_of(const Stream& stream) {
  StreamBackend& backend = stream.backend();
  return backend.native() != nullptr ? DeviceKind::cuda : backend.kind();
}

}  // namespace atoll_v1::atoll

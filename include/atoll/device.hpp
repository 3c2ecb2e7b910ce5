// Devices and their memory, streams and events. A stream is a queue with a worker thread on the
// CPU device and a CUDA stream on a GPU. Code that uses this header works on both without knowing
// which one it has.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "atoll/implementation.hpp"
#include "atoll/view.hpp"

namespace atoll_v1::atoll {

class DeviceBackend;  // interface that each kind of device implements (src/device/backend.hpp)
class StreamBackend;
class EventBackend;
class StampBackend;
class DeviceOps;  // kernels that the library itself needs (src/device/ops.hpp)

enum class DeviceKind : std::int32_t {
  cpu = 0,
  cuda = 1,
  simulated = 2  // a simulated device, whose streams are clocks (planner.hpp)
};

// Marks a point in the work of a stream; it happens when all work enqueued before it is done.
// Copies refer to the same point. A default-constructed event has already happened.
class ATOLL_API Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<EventBackend> impl) : impl_(std::move(impl)) {}
  bool happened() const;
  // Blocks the calling thread until the event has happened. Throws the error of the stream if work
  // before the event failed.
  void synchronize() const;
  const std::shared_ptr<EventBackend>& backend() const noexcept { return impl_; }

 private:
  std::shared_ptr<EventBackend> impl_;
};

// The time at which a stream reaches a point of its work. Copies refer to the same point.
class ATOLL_API Stamp {
 public:
  Stamp() = default;
  explicit Stamp(std::shared_ptr<const StampBackend> impl) : impl_(std::move(impl)) {}
  // Nanoseconds of the steady clock. Empty until the stream reaches the point, which a failed
  // stream may never do, and always empty for a default-constructed Stamp.
  std::optional<std::int64_t> ns() const;
  explicit operator bool() const noexcept { return impl_ != nullptr; }

 private:
  std::shared_ptr<const StampBackend> impl_;
};

// A scheduling hint for GPUs; the CPU device ignores it.
enum class StreamPriority {
  normal,
  high
};
enum class WaitReason {
  order,
  communication  // the time spent waiting counts as exposed communication
};

enum class Access {
  read,
  write
};

struct StreamOptions {
  std::string name = "stream";  // shown as thread name and as row of a trace
  StreamPriority priority = StreamPriority::normal;
};

class Stream;
// A reference of a pass to a stream. Its pointer stays valid when the stream is moved, and is null
// after the stream has been destroyed.
using StreamLink = std::shared_ptr<Stream*>;

// An ordered queue of work on one device. Every function but synchronize() returns at once.
//
// Threads: any thread may call any function of a Stream, which orders the work of several threads
// as it comes. A task must not destroy its own stream.
//
// Waits in tasks: a task of a CPU stream may wait for other streams. It cannot wait for its own
// stream: not by synchronize(), and not for a collective that it has enqueued on it, since this
// work runs only after the task. Such a wait throws Error(invalid_argument). A cycle of waits over
// several streams is not noticed.
//
// Errors: when work fails, the stream drops later work until the program has received the error:
// until synchronize() of this stream or of a later event, or a function of a Work, has thrown or
// returned it. Work that is enqueued afterwards runs, and waits for earlier events no longer fail
// it. Work that was enqueued before stays dropped, and synchronize() and events that follow such
// work, with no newer work between, throw the error every time. On a GPU only functions of
// enqueue() are dropped: copies and kernels run, on data that may be wrong. If a failed stream
// drops a collective, its communicator fails (communicator.hpp). If the stream is destroyed before
// any call has reported its error, the World fails, and the other ranks get the text of that error.
// Every call of a Stream that was moved from throws Error(invalid_argument).
class ATOLL_API Stream {
 public:
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();  // waits until all enqueued work is done

  // Runs `work` on the CPU in stream order. On a GPU it is a host function of the CUDA stream and
  // must not call CUDA or this interface. Throws Error(invalid_argument) if `work` is empty.
  void enqueue(std::function<void()> work);
  // Copies `bytes` bytes in stream order. Both addresses may be in memory of this device or in CPU
  // memory; the ranges must not overlap. copy() and zero() throw Error(invalid_argument) for a null
  // address, unless `bytes` is 0.
  void copy(void* dst, const void* src, std::size_t bytes);
  void zero(void* dst, std::size_t bytes);
  Event record();
  // Same as enqueue() followed by record(), but cheaper.
  Event enqueue_and_record(std::function<void()> work);
  // Records the time at which all earlier work is done and later work may start.
  Stamp stamp();
  // Makes work enqueued later wait for the event. If the stream of the event failed before the
  // event, this stream fails with the same error.
  void wait(const Event& event, WaitReason reason = WaitReason::order);
  // Blocks the calling thread until all work is done; throws the error of the stream if it failed.
  void synchronize();
  // Declares that the work enqueued next, named `what` in messages, uses this memory. With
  // ATOLL_CHECK=lifetimes it throws Error(internal) if no event orders this use after conflicting
  // uses on other streams; without the checker it does nothing.
  void use(const ConstView& view, Access access, std::string_view what);
  // Time that this stream has spent idle in waits with WaitReason::communication. Complete after
  // synchronize().
  std::chrono::nanoseconds exposed_communication() const;

  const std::string& name() const noexcept { return name_; }
  StreamBackend& backend() const { return *impl_; }
  const StreamLink& link();

 private:
  friend class Device;
  ATOLL_LOCAL Stream(std::unique_ptr<StreamBackend> impl, std::string name);
  Implementation<std::unique_ptr<StreamBackend>> impl_;
  std::string name_;
  StreamLink link_;  // null until the first call of link()
};

// Owns a block of memory and frees it when the handle is destroyed. The owner must make sure that
// no stream still uses the memory then.
class Buffer {
 public:
  Buffer() = default;
  // Takes ownership of `bytes` bytes at `memory`. The deleter of the pointer frees them.
  Buffer(std::shared_ptr<void> memory, std::size_t bytes) noexcept
      : memory_(std::move(memory)), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept
      : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }
  View view(DType dtype) const noexcept { return {data(), bytes_ / size_of(dtype), dtype}; }

 private:
  std::shared_ptr<void> memory_;  // owned by this Buffer alone; a shared_ptr can store any deleter
  std::size_t bytes_ = 0;
};

// A device on which this process computes. The handle is cheap to copy; copies refer to the same
// device. Any thread may call any function.
class ATOLL_API Device {
 public:
  // Returns the CPU as a device. Each call returns a new one with its own count of allocations.
  static Device cpu();
  // Returns the GPU with this CUDA ordinal, with its own count of allocations; memory comes from
  // cudaMalloc. Calls restore the current CUDA device of the thread, unless that would create a
  // context on it; code that calls CUDA directly must therefore set its device first. Throws
  // Error(unsupported) in a build without CUDA, and Error(not_found) if there is no such GPU.
  static Device cuda(int ordinal = 0);
  // Returns the number of GPUs visible to CUDA; 0 without a driver.
  static int cuda_count() noexcept;
  // Sets CUDA_DEVICE_MAX_CONNECTIONS to 32 in this process, unless it is set: more hardware queues
  // than the default of 8, for programs with many streams. Call it before the first use of a GPU.
  // choose_rank_device() calls it if Config::owns_process is 1.
  static void request_gpu_queues() noexcept;
  explicit Device(std::shared_ptr<DeviceBackend> impl);

  DeviceKind kind() const noexcept;
  std::string_view name() const noexcept;
  // UUID of the GPU as nvidia-smi prints it, such as "GPU-...". Equal in all processes that use
  // this GPU; empty on CPUs.
  std::string_view uuid() const noexcept;
  std::string_view pci_address() const noexcept;  // PCI bus id ("0000:0f:00.0"); empty on CPUs
  int ordinal() const noexcept;                   // CUDA ordinal of a GPU; -1 on other devices
  // Allocates uninitialised memory, aligned to 4,096 bytes (256 on a GPU). Throws
  // Error(out_of_memory) with the size.
  Buffer allocate(std::size_t bytes) const;
  // Allocates CPU memory that copies to and from this device can use without blocking the caller
  // (pinned memory on a GPU). Uninitialised, aligned to 64 bytes, and not part of
  // allocated_bytes(). Throws Error(out_of_memory).
  Buffer allocate_staging(std::size_t bytes) const;
  // Total memory of the device; 0 if it is not known.
  std::uint64_t memory_bytes() const noexcept;
  Stream stream(StreamOptions options = {}) const;
  // Makes a Stream of a native stream that the caller owns; cuda::wrap_stream() (cuda.hpp) is the
  // typed form. Throws Error(unsupported) on devices other than GPUs.
  Stream wrap_stream(void* native, StreamOptions options = {}) const;
  DeviceOps& ops() const noexcept;
  // Bytes of this device's memory that allocate() and communicators have allocated and not freed,
  // and the largest number so far.
  std::size_t allocated_bytes() const noexcept;
  std::size_t peak_allocated_bytes() const noexcept;
  const std::shared_ptr<DeviceBackend>& backend() const noexcept { return impl_; }

 private:
  std::shared_ptr<DeviceBackend> impl_;
};

}  // namespace atoll_v1::atoll

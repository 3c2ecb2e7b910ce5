// Devices, memory, streams and events. On `host` a stream is a queue with a worker thread; on
// `cuda` it is a CUDA stream; on `virtual` a clock. Nothing above this header knows the difference.
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

#include "atoll/view.hpp"

namespace atoll_v1::atoll {

class DeviceBackend;  // implemented once per kind of device: src/device/backend.hpp
class StreamBackend;
class EventBackend;
class StampBackend;
class DeviceOps;  // the kernels that the library itself needs: src/device/ops.hpp

enum class DeviceKind : std::int32_t {
  host = 0,
  cuda = 1,
  virtual_time = 2
};

// A point in the work of a stream. Copies name the same point. A default event has happened.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<EventBackend> impl) : impl_(std::move(impl)) {}
  bool happened() const;
  void synchronize() const;  // blocks the calling thread; throws the stream's error, if it has one
  const std::shared_ptr<EventBackend>& backend() const noexcept { return impl_; }

 private:
  std::shared_ptr<EventBackend> impl_;
};

// The moment at which a stream gets to a point of its work. Copies name the same one.
class Stamp {
 public:
  Stamp() = default;
  explicit Stamp(std::shared_ptr<const StampBackend> impl) : impl_(std::move(impl)) {}
  // ns of the steady clock; nothing until the stream has been there (never, perhaps, where it
  // failed before), and of a default Stamp.
  std::optional<std::int64_t> ns() const;
  explicit operator bool() const noexcept { return impl_ != nullptr; }

 private:
  std::shared_ptr<const StampBackend> impl_;
};

// A hint; `host` has no use for it.
enum class StreamPriority {
  normal,
  high
};
enum class WaitReason {
  order,
  communication
};  // the second counts as exposed communication

enum class Access {
  read,
  write
};

struct StreamOptions {
  std::string name = "stream";  // thread name, trace row
  StreamPriority priority = StreamPriority::normal;
};

// An ordered queue of work. Functions of one Stream are called by one thread at a time, a task that
// calls its own stream included (synchronize() counts, too); they return at once. The last handle
// must not end inside the stream's own work. When work fails, what was enqueued behind it on this
// stream does not run, and synchronize(), and waits on later events of this stream, throw the first
// error.
class Stream {
 public:
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();  // waits for the work that was enqueued

  // Runs `work` on the CPU in the order of the stream: on the worker of a host stream, as a host
  // function of a CUDA stream (where it must not call the device's interface).
  void enqueue(std::function<void()> work);
  void copy(void* dst, const void* src, std::size_t bytes);  // addresses of this device or the host
  void zero(void* dst, std::size_t bytes);
  Event record();
  // enqueue(), then record(), at the price of one of them.
  Event enqueue_and_record(std::function<void()> work);
  // When what was enqueued before is done, and what comes after may start.
  Stamp stamp();
  // Work enqueued later waits for the event; on failure of the event's stream this stream fails
  // too.
  void wait(const Event& event, WaitReason reason = WaitReason::order);
  void synchronize();  // blocks the calling thread until the queue is empty; throws its error
  // For the checker of ATOLL_CHECK=lifetimes: the work enqueued next, called `what`, uses this
  // memory. It then throws Error(internal) if no event orders that with other uses. Without it,
  // nothing.
  void use(const ConstView& view, Access access, std::string_view what);
  // Time that this stream has spent waiting for events with WaitReason::communication, while it had
  // nothing else to do. Complete after synchronize().
  std::chrono::nanoseconds exposed_communication() const;

  const std::string& name() const noexcept { return name_; }  // as StreamOptions has it
  StreamBackend& backend() const noexcept { return *impl_; }

 private:
  friend class Device;
  Stream(std::unique_ptr<StreamBackend> impl, std::string name);
  std::unique_ptr<StreamBackend> impl_;
  std::string name_;
};

// Device memory, freed with the handle. The owner sees to it that no stream still uses it.
class Buffer {
 public:
  Buffer() = default;
  // What `memory` points to; its deleter frees it.
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
  std::shared_ptr<void> memory_;  // never shared with another Buffer
  std::size_t bytes_ = 0;
};

// A device that this process computes on. A cheap handle; copies name the same device.
class Device {
 public:
  // A new handle to the CPU; allocations are counted per handle.
  static Device host();
  // A GPU of this process, by CUDA's ordinal; allocations are counted per handle. Its streams start
  // kernels and copies; memory is cudaMalloc's. A call leaves the thread's current device as it
  // was, but where that GPU has no context: then this one stays current, for to go back would bring
  // one up. Who calls CUDA himself chooses his device before. Error(unsupported) in a build without
  // CUDA, Error(not_found) where there is no such GPU.
  static Device cuda(int ordinal = 0);
  static int cuda_count() noexcept;  // GPUs that cuda() takes; 0 without a driver
  explicit Device(std::shared_ptr<DeviceBackend> impl);

  DeviceKind kind() const noexcept;
  std::string_view name() const noexcept;
  // "GPU-...", as nvidia-smi spells it: the same for all processes on one GPU. Empty on the host.
  std::string_view uuid() const noexcept;
  std::string_view pci_address() const noexcept;  // "0000:0f:00.0"; empty on the host
  int ordinal() const noexcept;                   // of a GPU, as CUDA counts them here; else -1
  // Aligned to 4,096 bytes (256 on cuda), not initialised. Error(out_of_memory) names the size.
  Buffer allocate(std::size_t bytes) const;
  // Memory of the host that copies to and from this device take without waiting for the host
  // (pinned, for cuda); aligned to 64 bytes, not initialised, not counted. Error(out_of_memory).
  Buffer allocate_staging(std::size_t bytes) const;
  // In all; 0 where it is not known.
  std::uint64_t memory_bytes() const noexcept;
  Stream stream(StreamOptions options = {}) const;
  DeviceOps& ops() const noexcept;
  // Bytes that allocate() has handed out: now, and the most so far.
  std::size_t allocated_bytes() const noexcept;
  std::size_t peak_allocated_bytes() const noexcept;
  const std::shared_ptr<DeviceBackend>& backend() const noexcept { return impl_; }

 private:
  std::shared_ptr<DeviceBackend> impl_;
};

}  // namespace atoll_v1::atoll

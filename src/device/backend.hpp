// What a kind of device implements. One implementation per folder beside this file; tests carry
// another to prove that nothing above depends on `host`.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "atoll/device.hpp"
#include "device/task.hpp"

namespace atoll_v1::atoll {

// For messages: "gathered layers.0".
struct Label {
  std::string_view what;
  std::string_view of{};
};

class EventBackend {
 public:
  virtual ~EventBackend() = default;
  virtual bool happened() const = 0;
  // The same, asked by somebody who orders nothing by the answer: a checker does not take it for an
  // order of the host behind the event.
  virtual bool peek() const { return happened(); }
  virtual void
  synchronize() = 0;  // throws the error of its stream, if that failed before the event
  // From somebody who knows that work in front of the event has failed, where the stream does not:
  // it and its stream have failed then. For kinds of device that launch; a host's tasks throw.
  virtual void fail([[maybe_unused]] std::exception_ptr error) {}
};

class StampBackend {
 public:
  virtual ~StampBackend() = default;
  virtual std::optional<std::int64_t> ns() const = 0;  // of the steady clock, once it is known
};

class StreamBackend {
 public:
  virtual ~StreamBackend() = default;  // drains
  virtual void enqueue(std::function<void()> work) = 0;
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void zero(void* dst, std::size_t bytes) = 0;
  // Every byte becomes `value`. For a device whose memory the CPU cannot write, this is to
  // override.
  virtual void fill(void* dst, std::byte value, std::size_t bytes) {
    enqueue([=] { std::memset(dst, std::to_integer<int>(value), bytes); });
  }
  virtual std::shared_ptr<EventBackend> record() = 0;
  virtual std::shared_ptr<EventBackend> enqueue_and_record(Task work) {
    enqueue([task = std::make_shared<Task>(std::move(work))] { (*task)(); });
    return record();
  }
  // By the CPU's clock, in an enqueued function; for a device with timers of its own to replace.
  virtual std::shared_ptr<const StampBackend> stamp();
  virtual void wait(std::shared_ptr<EventBackend> event, WaitReason reason) = 0;
  virtual void synchronize() = 0;
  virtual std::chrono::nanoseconds exposed_communication() const = 0;
  virtual void* native() noexcept = 0;  // cudaStream_t; nullptr on host
  // For profilers: what the host enqueues here until the range of this number ends is `label`.
  virtual std::uint64_t begin_range([[maybe_unused]] const Label& label) { return 0; }
  virtual void end_range([[maybe_unused]] std::uint64_t number) noexcept {}

  // For checkers (checked/); no other stream listens.
  // What is enqueued next uses this memory, and takes it to hold `content`, if that is given.
  virtual void use([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes,
                   [[maybe_unused]] Access access, [[maybe_unused]] Label by,
                   [[maybe_unused]] Label content) {}
  // In the order of this stream the memory holds `content` from here on; without one, nothing that
  // may be used.
  virtual void hold([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes,
                    [[maybe_unused]] Label content) {}
};

// A range over a scope.
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

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual DeviceKind kind() const noexcept = 0;
  virtual std::string_view name() const noexcept = 0;
  virtual int ordinal() const noexcept { return -1; }  // of a GPU, as CUDA counts them
  virtual std::string_view uuid() const noexcept { return {}; }
  virtual std::string_view pci_address() const noexcept { return {}; }
  virtual void* allocate(std::size_t bytes) = 0;  // throws Error(out_of_memory)
  virtual void deallocate(void* data, std::size_t bytes) noexcept = 0;
  virtual std::uint64_t memory_bytes() const noexcept { return 0; }
  // Memory of the host, from where the device copies best; throws Error(out_of_memory).
  virtual void* allocate_staging(std::size_t bytes);
  virtual void deallocate_staging(void* data) noexcept;
  // Counts memory of this device that a communication backend handed out (or, below 0, took back).
  virtual void account(std::ptrdiff_t bytes) noexcept = 0;
  // The same, with the memory's address.
  virtual void adopt([[maybe_unused]] void* data, std::size_t bytes) {
    account(static_cast<std::ptrdiff_t>(bytes));
  }
  virtual void disown([[maybe_unused]] void* data, std::size_t bytes) noexcept {
    account(-static_cast<std::ptrdiff_t>(bytes));
  }
  virtual std::unique_ptr<StreamBackend> make_stream(const StreamOptions& options) = 0;
  virtual DeviceOps& ops() noexcept = 0;
  virtual std::size_t allocated_bytes() const noexcept = 0;
  virtual std::size_t peak_allocated_bytes() const noexcept = 0;
};

}  // namespace atoll_v1::atoll

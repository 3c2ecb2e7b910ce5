// What a kind of device implements. One implementation per folder beside this file; tests carry
// another to prove that nothing above depends on `host`.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "atoll/device.hpp"

namespace atoll_v1::atoll {

class EventBackend {
 public:
  virtual ~EventBackend() = default;
  virtual bool happened() const = 0;
  virtual void
  synchronize() = 0;  // throws the error of its stream, if that failed before the event
};

class StreamBackend {
 public:
  virtual ~StreamBackend() = default;  // drains
  virtual void enqueue(std::function<void()> work) = 0;
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void zero(void* dst, std::size_t bytes) = 0;
  virtual std::shared_ptr<EventBackend> record() = 0;
  virtual std::shared_ptr<EventBackend> enqueue_and_record(std::function<void()> work) {
    enqueue(std::move(work));
    return record();
  }
  virtual void wait(std::shared_ptr<EventBackend> event, WaitReason reason) = 0;
  virtual void synchronize() = 0;
  virtual std::chrono::nanoseconds exposed_communication() const = 0;
  virtual void* native() noexcept = 0;  // cudaStream_t; nullptr on host
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual DeviceKind kind() const noexcept = 0;
  virtual std::string_view name() const noexcept = 0;
  virtual void* allocate(std::size_t bytes) = 0;  // throws Error(out_of_memory)
  virtual void deallocate(void* data, std::size_t bytes) noexcept = 0;
  // Counts memory of this device that a communication backend handed out (or, below 0, took back).
  virtual void account(std::ptrdiff_t bytes) noexcept = 0;
  virtual std::unique_ptr<StreamBackend> make_stream(const StreamOptions& options) = 0;
  virtual DeviceOps& ops() noexcept = 0;
  virtual std::size_t allocated_bytes() const noexcept = 0;
  virtual std::size_t peak_allocated_bytes() const noexcept = 0;
};

}  // namespace atoll_v1::atoll

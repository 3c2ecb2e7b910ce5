#include "device/virtual/device.hpp"

#include <cmath>
#include <cstring>

#include "core/errors.hpp"
#include "device/virtual/stream.hpp"

namespace atoll_v1::atoll::simulated {
namespace {

// Addresses of virtual memory begin here and grow, far from the heap, libraries and stacks of a
// process, so that an access ends the process instead of reading other memory.
constexpr std::uintptr_t first_address = std::uintptr_t{1} << 46;
constexpr std::size_t alignment = 4096;

}  // namespace

VirtualDevice::VirtualDevice(DeviceOptions options)
    : DeviceBackend({.kind = DeviceKind::virtual_time,
                     .name = options.name,
                     .memory_bytes = options.memory_bytes}),
      options_(std::move(options)),
      timeline_(std::make_shared<Timeline>(options_.launch_seconds)),
      ops_(options_),
      next_(first_address) {}

void* VirtualDevice::allocate(std::size_t bytes) {
  const std::size_t limit = options_.memory_bytes, used = allocations().now();
  require(limit == 0 || (bytes <= limit && used <= limit - bytes), ErrorCode::out_of_memory,
          "{}: cannot allocate {} bytes: {} of {} bytes are in use", options_.name, bytes, used,
          limit);
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  return reinterpret_cast<void*>(next_.fetch_add(rounded));
}

void* VirtualDevice::allocate_staging(std::size_t bytes) {
  void* const data = DeviceBackend::allocate_staging(bytes);
  std::memset(data, 0, bytes);
  return data;
}

std::unique_ptr<StreamBackend> VirtualDevice::make_stream(const StreamOptions&) {
  return std::make_unique<VirtualStream>(timeline_, options_);
}

VirtualDevice& device_of(const Device& device) {
  auto* const found = dynamic_cast<VirtualDevice*>(device.backend().get());
  require(found != nullptr, "the device {} is not simulated: make it with simulated::make_device()",
          device.name());
  return *found;
}

Device make_device(DeviceOptions options) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  require(positive(options.memory_gbyte_s),
          "simulated::make_device: memory_gbyte_s is {}: pass a bandwidth above 0",
          options.memory_gbyte_s);
  for (const auto& [kernel, rate] : options.kernel_gbyte_s) {
    require(positive(rate),
            "simulated::make_device: kernel_gbyte_s of {} is {}: pass a rate above 0", kernel,
            rate);
  }
  require(options.units >= 0, "simulated::make_device: units is {}: pass 0 or more", options.units);
  require(options.launch_seconds == 0 || positive(options.launch_seconds),
          "simulated::make_device: launch_seconds is {}: pass 0 or more", options.launch_seconds);
  return Device(std::make_shared<VirtualDevice>(std::move(options)));
}

void run(Stream& stream, TimedWork work) {
  auto* const found = dynamic_cast<VirtualStream*>(&stream.backend());
  require(found != nullptr, "simulated::run: the stream {} is not of a simulated device",
          stream.name());
  const auto valid = [](double value) { return std::isfinite(value) && value >= 0; };
  require(valid(work.latency) && valid(work.seconds),
          "simulated::run: {} takes {} s after {} s: pass finite times of 0 or more", work.name,
          work.seconds, work.latency);
  require(
      work.crowded_speed > 0 && work.crowded_speed <= 1,
      "simulated::run: the crowded_speed of {} is {}: pass a part of its speed above 0, at most 1",
      work.name, work.crowded_speed);
  found->run(std::move(work));
}

double host_time(const Device& device) { return device_of(device).timeline().host_time(); }

void spend(const Device& device, double seconds) {
  require(std::isfinite(seconds) && seconds >= 0,
          "simulated::spend: {} s: pass a finite time of 0 or more", seconds);
  device_of(device).timeline().spend(seconds);
}

}  // namespace atoll_v1::atoll::simulated

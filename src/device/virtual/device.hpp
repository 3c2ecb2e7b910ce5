// A device whose streams are clocks and whose memory is an accounting entry.
#pragma once

#include <memory>
#include <string>

#include "device/backend.hpp"
#include "device/virtual/ops.hpp"
#include "device/virtual/timeline.hpp"

namespace atoll_v1::atoll::simulated {

class VirtualDevice final : public DeviceBackend {
 public:
  explicit VirtualDevice(DeviceOptions options);

  void* allocate(std::size_t bytes) override;
  void deallocate(void*, std::size_t) noexcept override {}
  // Real memory, filled with zeros: the host reads results of kernels there, such as norms.
  void* allocate_staging(std::size_t bytes) override;
  std::unique_ptr<StreamBackend> make_stream(const StreamOptions& options) override;
  DeviceOps& ops() noexcept override { return ops_; }

  Timeline& timeline() noexcept { return *timeline_; }
  const std::string& links() const noexcept { return options_.links; }

 private:
  DeviceOptions options_;
  std::shared_ptr<Timeline> timeline_;
  VirtualOps ops_;
  std::atomic<std::uintptr_t> next_;  // next free address
};

// Throws Error(invalid_argument) for a device that is not simulated.
VirtualDevice& device_of(const Device& device);

}  // namespace atoll_v1::atoll::simulated

// The host device: memory of the CPU, and streams with worker threads.
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "atoll/error.hpp"
#include "device/allocation_count.hpp"
#include "device/backend.hpp"
#include "device/host/ops.hpp"
#include "device/host/stream.hpp"

namespace atoll_v1::atoll {
namespace host {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t round_up(std::size_t bytes) { return (bytes + page - 1) / page * page; }

class HostDevice final : public DeviceBackend {
 public:
  DeviceKind kind() const noexcept override { return DeviceKind::host; }
  std::string_view name() const noexcept override { return "host"; }

  void* allocate(std::size_t bytes) override {
    void* data = std::aligned_alloc(page, round_up(bytes));
    if (!data) {
      throw Error(ErrorCode::out_of_memory,
                  "host memory: cannot allocate " + std::to_string(bytes) + " bytes");
    }
    allocated_.add(static_cast<std::ptrdiff_t>(bytes));
    return data;
  }

  void deallocate(void* data, std::size_t bytes) noexcept override {
    std::free(data);
    allocated_.add(-static_cast<std::ptrdiff_t>(bytes));
  }

  std::uint64_t memory_bytes() const noexcept override {
    const long pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
    if (pages <= 0 || bytes <= 0) return 0;
    return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(bytes);
  }

  void account(std::ptrdiff_t bytes) noexcept override { allocated_.add(bytes); }

  std::unique_ptr<StreamBackend> make_stream(const StreamOptions& options) override {
    return std::make_unique<HostStream>(options);
  }
  DeviceOps& ops() noexcept override { return *ops_; }
  std::size_t allocated_bytes() const noexcept override { return allocated_.now(); }
  std::size_t peak_allocated_bytes() const noexcept override { return allocated_.peak(); }

 private:
  std::unique_ptr<DeviceOps> ops_ = make_ops();
  AllocationCount allocated_;
};

}  // namespace
}  // namespace host

Device Device::host() { return Device(std::make_shared<host::HostDevice>()); }

}  // namespace atoll_v1::atoll

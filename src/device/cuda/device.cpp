// The cuda device: one GPU of this process.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "atoll/cuda/environment.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "device/backend.hpp"
#include "device/cuda/api.hpp"
#include "device/cuda/ops.hpp"
#include "device/cuda/stream.hpp"

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
          fmt::format("pinned host memory: cannot allocate {} bytes", bytes));
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

// The streams of a GPU share 8 hardware queues by default, and work in one queue waits for the work
// before it, whatever its stream. An engine, NCCL and the trainer have some 20 streams. The driver
// reads the variable when it makes the first context.
void request_queues() noexcept {
  [[maybe_unused]] static const bool once = [] {
    if (std::getenv(queues_variable) != nullptr) return true;  // the user's choice
    atoll_abi::add_to_environment({std::string(queues_variable) + "=32"});
    log::debug("{}=32: a hardware queue for each stream of a GPU", queues_variable);
    return true;
  }();
}

}  // namespace
}  // namespace cuda

int Device::cuda_count() noexcept {
  cuda::request_queues();
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

#include "report/gpu_use.hpp"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace train {
namespace {

// The part of nvml.h that is needed here, which is stable across drivers.
struct Device;
struct NvmlUtilization {
  unsigned gpu = 0, memory = 0;  // shares of time in use, in percent
};
union Value {
  double real;
  unsigned u32;
  unsigned long u64;
  unsigned long long whole;
};
struct FieldValue {
  unsigned field = 0;
  unsigned scope = 0;
  long long timestamp = 0, latency = 0;
  unsigned type = 0;
  int result = 0;
  Value value{};
};
static_assert(sizeof(FieldValue) == 40 && offsetof(FieldValue, value) == 32);

constexpr int success = 0;
constexpr unsigned all_links = ~0U;
constexpr double kib = 1024;
enum : unsigned {
  nvlink_sent = 138,
  nvlink_received = 139,
  pcie_sent = 197,
  pcie_received = 198
};
enum : unsigned {
  type_unsigned = 1,
  type_unsigned_long = 2,
  type_unsigned_long_long = 3
};

double number(const FieldValue& field) {
  if (field.result != success) return 0;
  switch (field.type) {
    case type_unsigned:
      return field.value.u32;
    case type_unsigned_long:
      return static_cast<double>(field.value.u64);
    case type_unsigned_long_long:
      return static_cast<double>(field.value.whole);
    default:
      return 0;
  }
}

}  // namespace

struct GpuProbe::Nvml {
  Device* device = nullptr;
  int (*utilization)(Device*, NvmlUtilization*) = nullptr;
  int (*fields)(Device*, int, FieldValue*) = nullptr;

  // Returns false if the library, a function other than `fields`, or the GPU is missing.
  bool open(const std::string& library, const std::string& pci_address) {
    void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) return false;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
      return function != nullptr;
    };
    int (*init)() = nullptr;
    int (*by_address)(const char*, Device**) = nullptr;
    find(fields, "nvmlDeviceGetFieldValues");  // absent from old drivers
    return find(init, "nvmlInit_v2") && find(by_address, "nvmlDeviceGetHandleByPciBusId_v2") &&
           find(utilization, "nvmlDeviceGetUtilizationRates") && init() == success &&
           by_address(pci_address.c_str(), &device) == success;
  }
};

GpuProbe::GpuProbe(const std::string& pci_address, const std::string& library) {
  if (pci_address.empty()) return;
  auto nvml = std::make_unique<Nvml>();
  if (nvml->open(library, pci_address)) nvml_ = std::move(nvml);
}

GpuProbe::~GpuProbe() = default;

std::optional<GpuReading> GpuProbe::read() const {
  if (!nvml_) return std::nullopt;
  NvmlUtilization used;
  if (nvml_->utilization(nvml_->device, &used) != success) return std::nullopt;
  GpuReading reading{.busy = used.gpu / 100.0};
  std::array<FieldValue, 4> fields{};
  const std::array<unsigned, 4> ids{nvlink_sent, nvlink_received, pcie_sent, pcie_received};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    fields[i].field = ids[i];
    fields[i].scope = i < 2 ? all_links : 0;
  }
  if (nvml_->fields == nullptr ||
      nvml_->fields(nvml_->device, static_cast<int>(fields.size()), fields.data()) != success) {
    return reading;
  }
  reading.nvlink_sent = number(fields[0]) * kib;
  reading.nvlink_received = number(fields[1]) * kib;
  reading.pcie_sent = number(fields[2]);
  reading.pcie_received = number(fields[3]);
  return reading;
}

}  // namespace train

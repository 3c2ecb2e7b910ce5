// Utilization and traffic of a GPU from NVML, which is loaded at run time.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace train {

// One reading of a GPU: how busy it was recently, and counters since the driver started. A counter
// that the GPU does not have stays 0.
struct GpuReading {
  double busy = 0;         // fraction of NVML's last sample period in which a kernel ran
  double nvlink_sent = 0;  // bytes over all links
  double nvlink_received = 0;
  double pcie_sent = 0;  // bytes; 0 on GPUs before Hopper
  double pcie_received = 0;
};

class GpuProbe {
 public:
  // `pci_address` is Device::pci_address(). Without one, a driver or the GPU, read() gives nothing.
  explicit GpuProbe(const std::string& pci_address,
                    const std::string& library = "libnvidia-ml.so.1");
  GpuProbe(const GpuProbe&) = delete;
  GpuProbe& operator=(const GpuProbe&) = delete;
  ~GpuProbe();

  std::optional<GpuReading> read() const;

 private:
  struct Nvml;
  std::unique_ptr<const Nvml> nvml_;
};

}  // namespace train

// Bandwidth of a PCIe link.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace atoll_v1::atoll {

// Transfer rates of a lane in GT/s, by PCIe generation.
inline constexpr std::array pcie_rates{2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0};
// Returns the GT/s of a lane of this PCIe generation; 0 for an unknown generation.
constexpr double pcie_gt_s(std::size_t generation) {
  return generation > 0 && generation <= pcie_rates.size() ? pcie_rates[generation - 1] : 0;
}
inline bool is_pcie_rate(double gt_s) {
  return std::ranges::find(pcie_rates, gt_s) != pcie_rates.end();
}

// GB/s of `width` lanes at `gt_s` GT/s in one direction, after line coding: 8b/10b up to 5 GT/s,
// 128b/130b up to 32 GT/s, and 242 of 256 bytes of a FLIT above (PCI Express Base Specification
// 6.0).
constexpr double pcie_gbyte_s(double gt_s, double width) {
  const double payload = gt_s <= 5 ? 0.8 : gt_s < 64 ? 128.0 / 130 : 242.0 / 256;
  return gt_s * width * payload / 8;
}

}  // namespace atoll_v1::atoll

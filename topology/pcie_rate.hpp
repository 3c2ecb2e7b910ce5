// Bandwidth of a PCIe link.
#pragma once

namespace atoll_v1::atoll {

// GB/s of `width` lanes at `gt_s` GT/s in one direction, after line coding: 8b/10b up to 5 GT/s,
// 128b/130b up to 32 GT/s, and 242 of 256 bytes of a FLIT above (PCI Express Base Specification
// 6.0).
constexpr double pcie_gbyte_s(double gt_s, double width) {
  const double payload = gt_s <= 5 ? 0.8 : gt_s < 64 ? 128.0 / 130 : 242.0 / 256;
  return gt_s * width * payload / 8;
}

}  // namespace atoll_v1::atoll

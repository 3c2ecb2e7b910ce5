// What a rank computes with: its device and the arithmetic for it. The one place in the trainer
// that knows which kinds of device there are.
#pragma once

#include <memory>

#include "atoll/device.hpp"
#include "model/ops.hpp"

namespace train {

struct Machine {
  atoll::Device device;
  std::unique_ptr<Ops> ops;
  int threads = 1;
  int ranks = 1;  // of this host

  // Operations per second of matrix products that this rank can have: measured for about half a
  // second, and shared where the ranks of the host have more threads than cores.
  double matrix_peak(atoll::DType dtype) const;
  // How that figure came about, for reports.
  std::string peak_source() const;
};

// `threads` of each rank on the CPU.
Machine make_machine(int threads, int ranks_of_host);

}  // namespace train

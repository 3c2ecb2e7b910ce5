#include "loop/machine.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "model/cpu/cpu_ops.hpp"

namespace train {

double Machine::matrix_peak(atoll::DType dtype) const {
  const auto cores = static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const double share = std::min(1.0, cores / (static_cast<double>(threads) * ranks));
  return share * cpu::matrix_peak_flops(dtype, threads);
}

std::string Machine::peak_source() const {
  return fmt::format(
      "this rank's share of the machine: oneDNN matrix products, {} threads, measured at the start",
      threads);
}

Machine make_machine(int threads, int ranks_of_host) {
  return {atoll::Device::host(),
          std::make_unique<cpu::CpuOps>(cpu::CpuOpsOptions{.threads = threads}), threads,
          ranks_of_host};
}

}  // namespace train

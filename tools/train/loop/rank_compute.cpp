#include "loop/rank_compute.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "model/cpu/cpu_ops.hpp"
#include "model/cuda/cuda_ops.hpp"

namespace train {

atoll::RankDevice choose_device(atoll::World& world, const std::string& wanted,
                                const std::string& backend) {
  return atoll::choose_rank_device(world, {.wanted = wanted,
                                           .backend = backend,
                                           .communicates = world.size() > 1,
                                           .check = cuda::check_usable});
}

double Machine::matrix_peak(atoll::World& world, atoll::DType dtype, double seconds) const {
  if (device().kind() == atoll::DeviceKind::cuda) {
    // Rate of the whole GPU in FLOP/s. Ranks that share a GPU measure one after another.
    double peak = 0;
    for (int turn = 0; turn < place.most_turns; ++turn) {
      if (turn == place.turn) peak = cuda::matrix_peak_flops(device(), dtype, seconds);
      if (place.most_turns > 1) world.barrier();
    }
    return peak / place.sharing;
  }
  const double share = std::min(1.0, cores / threads);
  return share * cpu::matrix_peak_flops(dtype, threads, seconds);
}

std::shared_ptr<muon::Arithmetic> Machine::muon_arithmetic() const {
  return device().kind() == atoll::DeviceKind::cuda ? muon::cuda_arithmetic(device())
                                                    : muon::cpu_arithmetic();
}

atoll::DType Machine::muon_products(atoll::DType param) const noexcept {
  return device().kind() == atoll::DeviceKind::cuda ? param : atoll::DType::f32;
}

std::string Machine::peak_detail() const {
  if (device().kind() == atoll::DeviceKind::cuda) {
    return fmt::format("this rank's share of {}: cuBLASLt matrix products", device().name());
  }
  return fmt::format("this rank's share of the machine: oneDNN matrix products, {} threads",
                     threads);
}

Machine make_machine(const atoll::World& world, atoll::RankDevice place,
                     const KernelOptions& options) {
  const bool deterministic = world.config().deterministic != 0;
  std::unique_ptr<Ops> ops;
  if (place.device.kind() == atoll::DeviceKind::cuda) {
    ops = cuda::make_ops(place.device, {.deterministic = deterministic, .fp8 = options.fp8});
  } else {
    ops = cpu::make_ops({.threads = options.threads, .deterministic = deterministic});
  }
  return {std::move(place), std::move(ops), options.threads, options.cores};
}

}  // namespace train

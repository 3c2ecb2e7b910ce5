// A rank's device and its compute kernels. Only this file of the trainer distinguishes kinds of
// device.
#pragma once

#include <memory>
#include <string>

#include "atoll/rank_device.hpp"
#include "atoll/world.hpp"
#include "model/ops.hpp"
#include "optimizers/arithmetic.hpp"

namespace train {

// Chooses the rank's device from --device and --backend. Collective; throws like
// choose_rank_device().
atoll::RankDevice choose_device(atoll::World& world, const std::string& wanted,
                                const std::string& backend);

struct Machine {
  atoll::RankDevice place;
  std::unique_ptr<Ops> ops;
  int threads = 1;
  double cores = 1;  // processors for the threads of a CPU rank

  const atoll::Device& device() const noexcept { return place.device; }
  // Highest FLOP/s of matrix products on this rank in about `seconds`. Ranks that share cores
  // or a GPU get their share of it. Collective.
  double matrix_peak(atoll::World& world, atoll::DType dtype, double seconds) const;
  // The arithmetic of Muon on this device.
  std::shared_ptr<muon::Arithmetic> muon_arithmetic() const;
  // The type of Muon's products in a run whose parameters have type `param`. CPUs use f32, which
  // most of them multiply no slower than bf16.
  atoll::DType muon_products(atoll::DType param) const noexcept;
  // Describes how matrix_peak() measured, for reports.
  std::string peak_detail() const;
};

struct KernelOptions {
  int threads = 1;   // compute threads of a CPU rank
  double cores = 1;  // processors for these threads
  bool fp8 = false;  // on GPUs: the products of the layers are in fp8 (--fp8)
};

// Makes the kernels. Throws Error(out_of_memory, unsupported or not_found) when this rank lacks a
// resource.
Machine make_machine(const atoll::World& world, atoll::RankDevice place,
                     const KernelOptions& options);

}  // namespace train

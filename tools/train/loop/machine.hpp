// What a rank computes with: its device and the arithmetic for it. The one place in the trainer
// that knows which kinds of device there are.
#pragma once

#include <memory>
#include <string>

#include "atoll/rank_device.hpp"
#include "atoll/world.hpp"
#include "model/ops.hpp"

namespace train {

// As options.hpp has --device and --backend. Collective; errors as of choose_rank_device().
atoll::RankDevice choose_device(atoll::World& world, const std::string& wanted,
                                const std::string& backend);

struct Machine {
  atoll::RankDevice place;
  std::unique_ptr<Ops> ops;
  int threads = 1;

  const atoll::Device& device() const noexcept { return place.device; }
  // Lets the arithmetic allocate what such shapes take.
  void reserve(const LargestShapes& shapes) const;
  // Operations per second of matrix products that this rank can have: measured for about half a
  // second, and shared where ranks of the host have more threads than cores, or one GPU.
  // Collective.
  double matrix_peak(atoll::World& world, atoll::DType dtype) const;
  // How that figure came about, for reports.
  std::string peak_source() const;
};

// `threads` of each rank on the CPU. Error(out_of_memory, unsupported, not_found) for what this
// rank has not.
Machine make_machine(const atoll::World& world, atoll::RankDevice place, int threads);

}  // namespace train

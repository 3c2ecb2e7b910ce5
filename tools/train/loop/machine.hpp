// What a rank computes with: its device and the arithmetic for it. The one place in the trainer
// that knows which kinds of device there are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "atoll/device.hpp"
#include "atoll/world.hpp"
#include "model/ops.hpp"

namespace train {

struct Machine {
  atoll::Device device;
  std::unique_ptr<Ops> ops;
  int threads = 1;
  int ranks = 1;  // of this host; on GPUs, of this rank's

  // Operations per second of matrix products that this rank can have: measured for about half a
  // second, and shared where ranks of the host have more threads than cores, or one GPU.
  double matrix_peak(atoll::DType dtype) const;
  // How that figure came about, for reports.
  std::string peak_source() const;
};

// What all ranks compute on: "host", "cuda", or "auto": GPUs where every rank sees one. Collective.
// Error(not_found) names a rank that has none.
atoll::DeviceKind choose_device(atoll::World& world, const std::string& wanted);

// The device of this rank: GPUs go round among the ranks of a host. Error(out_of_memory,
// unsupported, not_found) for what it has not.
atoll::Device open_device(const atoll::World& world, atoll::DeviceKind kind);

// Of its GPU, in bytes: nine tenths, as drivers and libraries take some; shared with its other ranks.
std::uint64_t gpu_memory_of_rank(const atoll::World& world);

// `threads` of each rank on the CPU.
Machine make_machine(const atoll::World& world, atoll::DeviceKind kind, int threads);

}  // namespace train

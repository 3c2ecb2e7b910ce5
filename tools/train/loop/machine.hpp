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

// What all ranks compute on, and how many share it.
struct DeviceChoice {
  atoll::DeviceKind kind = atoll::DeviceKind::host;
  std::string why;     // of the host, where some rank sees a GPU; else ""
  int sharing = 1;     // ranks on this rank's GPU
  int turn = 0;        // this rank's place among them
  int most_turns = 1;  // ranks on the GPU that has most
};

// `wanted` is "host", "cuda", or "auto": GPUs where every rank has one of its own, and the libraries and
// the backend (`backend`, if that is not "") for them. Collective. Error(not_found) names a rank that
// lacks something, and what.
DeviceChoice choose_device(atoll::World& world, const std::string& wanted,
                           const std::string& backend);

// Of this rank's GPU, in bytes: nine tenths, as drivers and libraries take some; shared with the other
// ranks on it.
std::uint64_t gpu_memory_of_rank(const atoll::World& world, const DeviceChoice& choice);

struct Machine {
  atoll::Device device;
  std::unique_ptr<Ops> ops;
  int threads = 1;
  DeviceChoice choice;

  // Operations per second of matrix products that this rank can have: measured for about half a
  // second, and shared where ranks of the host have more threads than cores, or one GPU. Collective.
  double matrix_peak(atoll::World& world, atoll::DType dtype) const;
  // How that figure came about, for reports.
  std::string peak_source() const;
};

// `threads` of each rank on the CPU; GPUs go round among the ranks of a host. Error(out_of_memory,
// unsupported, not_found) for what this rank has not.
Machine make_machine(const atoll::World& world, const DeviceChoice& choice, int threads);

}  // namespace train

// Chooses the device on which each rank of a job computes. All ranks decide together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "atoll/device.hpp"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

struct RankDeviceOptions {
  // "host"; "cuda" for GPUs, which the ranks of a host share round-robin; or "auto", which chooses
  // GPUs if every rank has one of its own that passes `check`, and otherwise the host.
  std::string wanted = "auto";
  std::string backend = {};  // backend of the communicators to be opened; empty for any
  bool communicates = true;  // false when no communicator will be opened
  // Throws Error with the reason when the caller cannot use this GPU.
  std::function<void(const Device&)> check = {};
};

struct RankDevice {
  Device device;
  std::string why;     // why visible GPUs are not used; empty otherwise
  int sharing = 1;     // number of ranks on this device, or on this host
  int turn = 0;        // index of this rank among them
  int most_turns = 1;  // largest number of ranks on one GPU of the job; 1 on the host
  // This rank's equal share of the GPU's memory; 0 on the host. Drivers and libraries use some of
  // it, which planners must reserve (fsdp::StrategyQuestion::reserve).
  std::uint64_t memory_bytes() const noexcept;
};

// Collective. Throws Error(invalid_argument) for an unknown value of `wanted`, Error(mismatch) when
// two ranks pass different values, and Error(not_found) when "cuda" is wanted and a rank cannot use
// a GPU; the texts name the ranks and the reason.
RankDevice choose_rank_device(World& world, const RankDeviceOptions& options);

}  // namespace atoll_v1::atoll

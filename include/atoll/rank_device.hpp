// Chooses the device on which each rank of a job computes. All ranks decide together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "atoll/device.hpp"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

struct RankDeviceOptions {
  // "cpu" (or "host"), "cuda" or "auto". With "cuda" the ranks of a host share its GPUs
  // round-robin. "auto" chooses GPUs if every rank gets a different GPU that passes `check`, and
  // otherwise CPUs.
  std::string wanted = "auto";
  // Backend of the communicators that will be opened; empty means any backend.
  std::string backend = {};
  bool communicates = true;  // false when the job opens no communicator and needs no backend
  // Caller's check of a GPU: throws Error with the reason when the caller cannot use the GPU.
  std::function<void(const Device&)> check = {};
};

struct ATOLL_API RankDevice {
  Device device;
  std::string why;     // why "auto" did not choose the visible GPUs; empty otherwise
  int sharing = 1;     // number of ranks that share the device, which is a GPU or the CPUs
  int turn = 0;        // index of this rank among the ranks that share the device
  int most_turns = 1;  // largest number of ranks on one GPU of the job; 1 on CPUs
  // Returns the memory of the GPU divided by the number of ranks that share it; 0 on CPUs.
  // Drivers and libraries use some of this memory, which planners must reserve
  // (fsdp::StrategyQuestion::reserve).
  std::uint64_t memory_bytes() const noexcept;
};

// Collective. Throws Error(invalid_argument) for an unknown value of `wanted`, Error(mismatch) when
// two ranks pass different values, and Error(not_found) when `wanted` is "cuda" and a rank cannot
// use a GPU. Each error names the ranks and the reason.
ATOLL_API RankDevice choose_rank_device(World& world, const RankDeviceOptions& options);

}  // namespace atoll_v1::atoll

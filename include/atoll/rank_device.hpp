// On which device each rank of a job computes, decided by all of them together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "atoll/device.hpp"
#include "atoll/world.hpp"

namespace atoll_v1::atoll {

struct RankDeviceOptions {
  // "host"; "cuda": GPUs, which go round among the ranks of a host; "auto": GPUs where every rank
  // has one of its own and all that it needs, the host otherwise.
  std::string wanted = "auto";
  // Backend of the communicators to be opened; "": any. None at all where there are none to be
  // opened.
  std::string backend = {};
  bool communicates = true;
  // Throws Error that says what this GPU lacks.
  std::function<void(const Device&)> check = {};
};

struct RankDevice {
  Device device;
  std::string why;     // a GPU that some rank sees is not used; else ""
  int sharing = 1;     // ranks on this device; those of the host, if it is that
  int turn = 0;        // this rank's place among them
  int most_turns = 1;  // ranks on the GPU that has most; 1 on the host
  // Of the GPU, in equal parts for the ranks on it; drivers and libraries take some of that, which
  // who plans leaves to them (fsdp::StrategyQuestion::reserve). 0 on the host.
  std::uint64_t memory_bytes() const noexcept;
};

// Collective. Error(invalid_argument) for another wish, Error(mismatch) where ranks wish
// differently, which names two; Error(not_found) where GPUs are wanted and a rank cannot have one,
// which it names, with what it lacks.
RankDevice choose_rank_device(World& world, const RankDeviceOptions& options);

}  // namespace atoll_v1::atoll

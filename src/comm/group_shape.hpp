// The properties of a group of ranks with which a fallback plans messages, sums and scratch memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "atoll/device.hpp"
#include "atoll/level_schedule.hpp"
#include "atoll/mesh.hpp"

namespace atoll_v1::atoll {

// Describes a sum in two levels, first inside each host and then across hosts, that adds in the
// same order as the tree over all ranks.
struct Levels {
  atoll_levels::HostLayout layout;  // the hosts, each with the same number of neighbouring ranks
  int intra_block;                  // ranks per block that is summed first inside a host; 0 if none
  int inter_block;                  // hosts per block that is summed first across hosts; 0 if none

  int intra() const noexcept { return layout.fewest_ranks(); }  // number of ranks on each host
};

// Returns the host of each rank of the axis, in axis order.
std::vector<int> hosts_of(const Axis& axis);

// Returns the two levels for a sum over ranks on `hosts` (from hosts_of()). `block` is the block
// size of the tree over all ranks, or 0. Returns nothing when the ranks are on one host, when hosts
// have different numbers of ranks, or when the ranks of a host are not a subtree of the sum.
std::optional<Levels> levels_of(std::span<const int> hosts, int block);

struct GroupShape {
  std::uint64_t rank;
  std::uint64_t ranks;
  DeviceKind memory;
  // Number of ranks in a block, which are added first; 0 means one tree over all ranks.
  int block = 0;
  std::optional<Levels> levels{};  // set when ordered sums can be computed level by level
};

}  // namespace atoll_v1::atoll

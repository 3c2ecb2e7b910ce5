// all_gather and reduce_scatter in two levels, for a backend that does not implement levels itself.
//
// The n ranks are on H hosts with L neighbouring ranks each. Rank (h, l) is rank l of host h and
// owns block (h, l) of the whole tensor of T bytes. Counterparts are the ranks with the same l on
// different hosts (level_schedule.hpp).
//   all_gather: counterparts exchange their blocks. Then the ranks of a host gather H times, once
//   for the blocks of each host.
//   reduce_scatter: the ranks of a host do H reduce_scatters, one for the blocks of each host. Then
//   counterparts reduce_scatter their H partial sums.
// A host sends (H - 1) / H of T to other hosts, where a ring over all ranks sends (n - 1) / n.
// all_gather needs no scratch memory. reduce_scatter needs T / L bytes of scratch memory for the
// partial sums, and adds inside the hosts first, so it cannot compute sums in a prescribed order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <utility>

#include "atoll/level_schedule.hpp"
#include "comm/fallback.hpp"

namespace atoll_v1::atoll {

class TwoLevel {
 public:
  // Opens the groups inside and across hosts. Collective over the axis. Returns null unless there
  // are several hosts with the same number, above one, of neighbouring ranks. Also returns null
  // when two levels are never chosen: no tuning line requests them and the rates of the axis are
  // unknown.
  static std::unique_ptr<TwoLevel> open(BackendCommunicator& whole, const std::stop_token& stop);
  // Creates an object without groups: use open() instead.
  TwoLevel(BackendCommunicator& whole, atoll_levels::HostLayout layout)
      : whole_(whole), layout_(std::move(layout)) {}

  // Returns true when a tuning line requests two levels for the operation, or when two levels are
  // faster by the rates of the axis. All ranks get the same result.
  bool takes(const Operation& operation) const;
  void run(const FallbackContext& call) const;
  std::uint64_t scratch_bytes(const Operation& operation) const;
  // Returns the group of the ranks of this host.
  BackendCommunicator* intra() const { return intra_.get(); }
  // Returns the groups that access the caller's buffers in addition to the group over all ranks.
  std::array<std::shared_ptr<BackendCommunicator>, 2> parts() const { return {intra_, inter_}; }

 private:
  void all_gather(const FallbackContext& call) const;
  void reduce_scatter(const FallbackContext& call) const;

  BackendCommunicator& whole_;
  atoll_levels::HostLayout layout_;
  // Groups of the ranks of this host, and of the counterparts of this rank.
  std::shared_ptr<BackendCommunicator> intra_, inter_;
};

}  // namespace atoll_v1::atoll

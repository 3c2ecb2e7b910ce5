// all_gather and reduce_scatter in two levels, for a backend that has no levels of its own.
//
// n ranks are H hosts of L neighbours; rank (h, l) is rank l of host h and owns block (h, l) of the
// whole tensor of T bytes. Counterparts are the ranks with the same l
// on other hosts (level_schedule.hpp).
//   all_gather: counterparts exchange their blocks; then every host gathers H times, once for the blocks
//   of each host.
//   reduce_scatter: every host does H reduce_scatters, one for the blocks of each host; then counterparts
//   reduce_scatter the H partial sums that each of them holds.
// A host sends (H - 1) / H of T to other hosts, where a ring over all ranks sends (n - 1) / n.
// Blocks arrive in their final places. reduce_scatter needs T / L of scratch memory for the partial
// sums. It adds inside the hosts first, so it does not serve sums in a prescribed order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "atoll/level_schedule.hpp"
#include "comm/fallback.hpp"

namespace atoll_v1::atoll {

// Modelled time of the collective in microseconds, from the rates of a plan: the latency of the
// smallest operation plus the bytes that a ring sends over the bandwidth. `bytes` counts the whole
// tensor.
double flat_us(const GroupRate& rate, int ranks, std::uint64_t bytes);
double two_level_us(const LevelRates& rates, int ranks, int inner, std::uint64_t bytes);

class TwoLevel {
 public:
  // Collective over the axis. Returns null when the axis does not have two such levels, or when
  // neither the tuning asks for levels nor rates are known that could favour them.
  static std::unique_ptr<TwoLevel> open(BackendGroup& whole);
  // Incomplete: use open().
  TwoLevel(BackendGroup& whole, atoll_levels::HostLayout layout)
      : whole_(whole), layout_(std::move(layout)) {}

  // True when the tuning asks for two levels here, or when they are faster by the rates of the
  // axis. All ranks decide the same.
  bool takes(const Operation& operation) const;
  void run(const FallbackContext& call) const;
  std::uint64_t scratch_bytes(const Operation& operation) const;
  // The groups that use the caller's buffers, besides the one over all ranks.
  std::array<std::shared_ptr<BackendGroup>, 2> parts() const { return {inside_, across_}; }

 private:
  void all_gather(const FallbackContext& call) const;
  void reduce_scatter(const FallbackContext& call) const;

  BackendGroup& whole_;
  atoll_levels::HostLayout layout_;
  std::shared_ptr<BackendGroup> inside_, across_;  // the ranks of this host, and its counterparts
};

}  // namespace atoll_v1::atoll

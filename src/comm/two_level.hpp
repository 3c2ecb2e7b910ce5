// all_gather and reduce_scatter of two levels, for a backend that has no levels of its own.
//
// n ranks are H hosts of L neighbours; rank (h, l) owns block (h, l) of the whole tensor of T
// bytes. Twins are the ranks in the same place l of every host.
//   all_gather: twins exchange their blocks, then every host gathers H times, once for the blocks
//   of each host.
//   reduce_scatter, the other way round: every host reduces and scatters H times, then twins do
//   with the H partial sums that each has got.
// A host sends (H - 1) / H of T to others, where a ring over all ranks sends (n - 1) / n. Blocks
// arrive in their places; reduce_scatter needs T / L of scratch memory for the partial sums.
// Sums are added inside the hosts first, so this is not for those whose order is given.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/composed.hpp"

namespace atoll_v1::atoll {

// Of the lines of tuning_lines(), those that choose between two levels and one ("two_level",
// "flat") for the two collectives; the others stay for the backend.
class LevelChoice {
 public:
  static LevelChoice take_from(std::string& tuning);
  bool asks_for_levels() const;  // at some size
  // What was asked for at this size, if anything: the last line that fits.
  std::optional<bool> two_level(std::int32_t kind, std::uint64_t bytes) const;

 private:
  struct Line {
    std::int32_t kind;
    std::uint64_t least_bytes;
    bool two_level;
  };
  std::vector<Line> lines_;
};

// Microseconds of the collective on `bytes` of the whole tensor, by the rates of a plan; bandwidth
// after the bytes that rings send, and the latency of the smallest operation.
double flat_us(const GroupRate& rate, int ranks, std::uint64_t bytes);
double two_level_us(const LevelRates& rates, int ranks, int inner, std::uint64_t bytes);

class TwoLevel {
 public:
  // Collective over the axis. NULL where there are no two such levels, and where nothing asks for
  // them and no rates tell when they are faster.
  static std::unique_ptr<TwoLevel> open(const Communicator::Impl& whole, LevelChoice choice);

  // Whether this is asked for, or faster by the rates of the axis; the same on all ranks.
  bool takes(const Communicator::Impl& whole, const Request& request) const;
  void run(const Call& call) const;
  std::uint64_t scratch_bytes(const Request& request) const;
  // Communicators that touch the buffers beside the one over all ranks.
  std::array<std::shared_ptr<Communicator::Impl>, 2> parts() const { return {inside_, across_}; }

 private:
  void all_gather(const Call& call) const;
  void reduce_scatter(const Call& call) const;
  void submit(const std::shared_ptr<Communicator::Impl>& part, const Call& call,
              std::vector<Request> requests) const;

  int inner_ = 1;
  int hosts_ = 1;
  LevelChoice choice_;
  std::shared_ptr<Communicator::Impl> inside_, across_;
};

}  // namespace atoll_v1::atoll

// The log of a scheduler. The times of a record become known when its stream has passed the stamps
// before and after the work.
//
// The log computes how long compute waited for each collective: the time during which a wait and
// the collective overlap. A lane runs one operation at a time, in order, so compute that waits for
// an event of the lane waits for the operation that the lane is running. An all-reduce across
// replicas waits for reduce-scatters, so a wait for the lane `replicate` is also attributed to
// earlier collectives on the lane `reduce`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "atoll/schedule.hpp"

namespace atoll_v1::atoll {

class ActivityLog {
 public:
  static constexpr std::size_t capacity_unasked = 16'384;  // records kept before the first take()
  static constexpr std::size_t capacity_asked = 262'144;   // records kept after the first take()

  struct Entry {
    TraceRecord record;  // record with times that are not known yet
    Lane lane = Lane::gather;
    // Number of the collective on its lane. For a wait: number of the last collective to wait for.
    std::uint64_t number = 0;
    Stamp begin, end;
  };

  void add(Entry&& entry);
  // Removes and returns the records whose times are known.
  TraceLog take();

 private:
  std::vector<Entry> entries_;  // a ring buffer once the log is full
  std::size_t oldest_ = 0;
  std::size_t capacity_ = capacity_unasked;
  std::uint64_t left_out_ = 0;
};

}  // namespace atoll_v1::atoll

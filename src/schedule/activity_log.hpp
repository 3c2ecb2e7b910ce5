// What a scheduler has put on streams, until somebody asks: records whose times come later.
//
// How long compute waited for a collective is the time in which the two overlap: a lane runs one
// operation at a time, in order, so what it is at while compute waits for a later point of it is
// what compute waits for. A sum across replicas waits for the one inside the shard axis, so a wait
// for `outer` is one for `reduce` as well, as far as its collectives came earlier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "atoll/schedule.hpp"

namespace atoll_v1::atoll {

class ActivityLog {
 public:
  // Records that are kept where nobody asks, and between the questions of somebody who does.
  static constexpr std::size_t capacity_unasked = 16'384;
  static constexpr std::size_t capacity_asked = 262'144;

  struct Entry {
    TraceRecord record;  // without times
    Lane lane = Lane::gather;
    std::uint64_t number = 0;  // of the collective; of a wait, the last collective it is for
    Stamp begin, end;
  };

  void add(Entry&& entry);
  TraceLog take();

 private:
  std::vector<Entry> entries_;  // a ring, once it is full
  std::size_t oldest_ = 0;
  std::size_t capacity_ = capacity_unasked;
  std::uint64_t left_out_ = 0;
};

}  // namespace atoll_v1::atoll

// Vector clocks: how much of everybody's work is known to be over at a point of somebody's work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::checked {

// Who has an order of work: the host is party 0, each stream another.
using Party = std::size_t;

class Clock {
 public:
  // The last moment of `party` that is over; moments count from 1.
  std::uint64_t of(Party party) const noexcept {
    return party < moments_.size() ? moments_[party] : 0;
  }
  bool includes(const Clock& other) const noexcept {
    for (Party party = 0; party < other.moments_.size(); ++party) {
      if (other.moments_[party] > of(party)) return false;
    }
    return true;
  }
  // The next moment of `party`.
  std::uint64_t tick(Party party) {
    if (party >= moments_.size()) moments_.resize(party + 1, 0);
    return ++moments_[party];
  }
  // Also knows what `other` knows.
  void join(const Clock& other) {
    if (other.moments_.size() > moments_.size()) moments_.resize(other.moments_.size(), 0);
    for (std::size_t i = 0; i < other.moments_.size(); ++i) {
      moments_[i] = std::max(moments_[i], other.moments_[i]);
    }
  }

 private:
  std::vector<std::uint64_t> moments_;  // by party
};

}  // namespace atoll_v1::atoll::checked

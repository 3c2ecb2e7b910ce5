// Vector clocks (Lamport, Mattern). At a point of one party's work, its clock states how much work of
// every other party is known to be done.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::checked {

// A party executes work in order. The host is party 0, and each stream is another party.
using Party = std::size_t;

class Clock {
 public:
  // Number of the last operation of `party` that is known to be done; operations count from 1.
  std::uint64_t of(Party party) const noexcept {
    return party < moments_.size() ? moments_[party] : 0;
  }
  bool includes(const Clock& other) const noexcept {
    for (Party party = 0; party < other.moments_.size(); ++party) {
      if (other.moments_[party] > of(party)) return false;
    }
    return true;
  }
  // Starts the next operation of `party` and returns its number.
  std::uint64_t tick(Party party) {
    if (party >= moments_.size()) moments_.resize(party + 1, 0);
    return ++moments_[party];
  }
  // Adds everything that `other` knows to be done.
  void join(const Clock& other) {
    if (other.moments_.size() > moments_.size()) moments_.resize(other.moments_.size(), 0);
    for (std::size_t i = 0; i < other.moments_.size(); ++i) {
      moments_[i] = std::max(moments_[i], other.moments_[i]);
    }
  }

 private:
  std::vector<std::uint64_t> moments_;  // indexed by party
};

}  // namespace atoll_v1::atoll::checked

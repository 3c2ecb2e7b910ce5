// A race detector for streams. It finds conflicting uses of memory that no event orders, and uses
// outside the lifetime of the memory's content. It checks each use while the work is being
// enqueued, with vector clocks alone, so it finds a missing wait even if the work happened to run
// in the right order.
//
// Each use of memory has a number on its stream. A stream knows all uses before the events that it
// has waited for, and all uses that the host knew when it enqueued; the host knows all uses before
// the points with which it has synchronized. Two uses of the same bytes, at least one of them a
// write, are ordered if the stream of the later use knows the earlier one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "device/backend.hpp"

namespace atoll_v1::atoll::checked {

inline std::uintptr_t address_of(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

// A party executes work in order. The host is party 0, and each stream is another party.
using Party = std::size_t;
inline constexpr Party host_party = 0;

// A vector clock (Lamport, Mattern). At a point of one party's work, it states how much work of
// every other party is known to be done.
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
  // Sets each count to the larger one of this clock and `other`.
  void join(const Clock& other) {
    if (other.moments_.size() > moments_.size()) moments_.resize(other.moments_.size(), 0);
    for (std::size_t i = 0; i < other.moments_.size(); ++i) {
      moments_[i] = std::max(moments_[i], other.moments_[i]);
    }
  }

 private:
  std::vector<std::uint64_t> moments_;  // number of the last known operation of each party
};

struct Range {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

// Any thread may call any function. A finding is an Error(internal). The call that makes a finding
// throws it, and so does every later call of wait(), use(), hold() and check(), so that a finding
// made in a destructor is not lost.
class Lifetimes {
 public:
  // Messages name `rank`, if it is given.
  explicit Lifetimes(std::optional<int> rank = {});

  const std::string& prefix() const noexcept { return prefix_; }  // begins every message

  Party add_stream(std::string name);
  Clock record(Party party);
  void wait(Party party, const Clock& event);
  // Records that the stream waits for an event of the caller. The checker does not know after which
  // work the event was recorded, so it assumes all work that has been enqueued on any stream.
  void wait_for_unknown(Party party);
  void synchronized(const Clock& event);  // records that the host waited for the event

  void allocated(Range range);
  // States whether the host or a task of a stream frees memory. A free by a task is not checked,
  // because its order relative to other work is not known.
  enum class By {
    host,
    task
  };
  // Returns false if the host frees memory that a stream may still be using.
  bool freed(const void* data, By by) noexcept;

  // mapped() declares a second mapping of memory: `second` has the addresses of the new mapping,
  // and `first` is the address of the same memory in its allocation. use() and hold() then accept
  // both addresses. unmapped() removes the declaration.
  void mapped(Range second, const void* first);
  void unmapped(const void* second) noexcept;

  // use() and hold() ignore memory that this device did not allocate.
  void use(Party party, Range range, Access access, Label by, Label content);
  void hold(Party party, Range range, Label content);

  // Records any other misuse, described by the text, and throws it as Error(internal).
  [[noreturn]] void report(const std::string& text);
  void check() const;

 private:
  struct Use {
    Party party;
    std::uint64_t moment;
    Access access;
    std::string by;
  };
  using SharedUse = std::shared_ptr<const Use>;
  struct Cell {
    SharedUse write;
    std::vector<SharedUse> reads;                // each stream's last read since the last write
    std::shared_ptr<const std::string> content;  // declared content of the memory; null if none
    bool alive = true;
  };
  // One allocation. Neighbouring bytes with the same history form a cell. The keys of `cells` are
  // addresses: a cell starts at its own key and ends at the next one.
  struct Region {
    std::uintptr_t end = 0;
    std::map<std::uintptr_t, Cell> cells;
  };
  struct Span {  // addresses where a range of memory begins and ends
    std::uintptr_t begin = 0, end = 0;
  };
  struct Target {
    std::uintptr_t begin = 0;  // address at which the allocation begins
    Region* region = nullptr;  // allocation that contains the range; null if no known one does
    Span span;
  };

  struct SecondMapping {
    std::uintptr_t end = 0;
    std::uintptr_t first = 0;  // address in the first mapping of the byte where the second begins
  };

  std::uintptr_t first_address(std::uintptr_t address) const;
  Target target(Range range);
  void visit(Region& region, Span span, const std::function<void(Cell&)>& visit);
  SharedUse start(Party party, Access access, std::string by);
  bool knows(const Clock& clock, const SharedUse& use) const;
  void check_order(const Cell& cell, const Use& use, const std::string& place);
  void check_end(const Region& region, Span span, const Use& use);
  std::string told(const Use& use) const;
  void check_found() const;
  [[noreturn]] void find(const std::string& text);

  const std::string prefix_;
  mutable std::mutex mutex_;
  std::vector<Clock> clocks_;              // the vector clock of each party
  std::vector<std::string> names_;         // the name of each party in messages
  std::vector<std::string> stream_names_;  // names that streams were made with
  std::map<std::uintptr_t, Region> regions_;
  std::map<std::uintptr_t, SecondMapping> second_mappings_;  // by the address at which each begins
  std::optional<Error> found_;
};

}  // namespace atoll_v1::atoll::checked

// Finds uses of memory that no event edge orders, and uses outside a lifetime: a race detector
// whose threads are streams. Everything is decided when work is enqueued, from clocks alone, so a
// missing edge is found even if the work happened to come out in the right order.
//
// Each use of memory is a moment of its stream. A stream knows what it has waited for, and what the
// host knew when it enqueued; the host knows what it has synchronized with. Two uses of the same
// bytes, one of which writes, are in order when the later one's stream knows the moment of the
// earlier.
#pragma once

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
#include "device/checked/clock.hpp"

namespace atoll_v1::atoll::checked {

inline constexpr Party host_party = 0;

struct Range {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

// Any thread may call any function. A finding is an Error(internal), thrown where it is made and
// again by every later call that says "throws": what a destructor had to swallow is not lost.
class Lifetimes {
 public:
  Lifetimes();

  Party add_stream(std::string name);
  Clock record(Party party);
  bool is_behind(Party party, const Clock& event);
  void wait(Party party, const Clock& event);  // throws
  void synchronized(const Clock& event);       // by the host
  void drained(Party party);                   // by the host

  void allocated(Range range);
  // The host frees it, or a task of a stream, of which nothing is known.
  enum class By {
    host,
    task
  };
  void freed(const void* data, By by) noexcept;

  // Memory that was not allocated here is not checked.
  void use(Party party, Range range, Access access, Label by, Label content);  // throws
  void hold(Party party, Range range, Label content);                          // throws

  // For other misuse: keeps the text as the finding and throws it.
  [[noreturn]] void report(const std::string& text);
  void check() const;  // throws

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
    std::vector<SharedUse> reads;                // since then, the last of each stream
    std::shared_ptr<const std::string> content;  // NULL: nobody has said
    bool alive = true;
  };
  // Neighbouring bytes with one history are one cell, from its key to the next one.
  struct Region {
    std::uintptr_t end = 0;
    std::map<std::uintptr_t, Cell> cells;
  };
  struct Span {  // of bytes, in one region
    std::uintptr_t begin = 0, end = 0;
  };
  struct Target {
    std::uintptr_t begin = 0;  // of the region
    Region* region = nullptr;  // null when the memory was not allocated here, or is empty
    Span span;
  };

  Target target(Range range);
  void visit(Region& region, Span span, const std::function<void(Cell&)>& visit);
  SharedUse start(Party party, Access access, std::string by);
  bool knows(const Clock& clock, const SharedUse& use) const;
  void check_order(const Cell& cell, const Use& use, const std::string& place);
  void check_end(const Region& region, Span span, const Use& use);
  std::string told(const Use& use) const;
  void check_found() const;
  [[noreturn]] void find(const std::string& text);

  mutable std::mutex mutex_;
  std::vector<Clock> clocks_;       // by party
  std::vector<std::string> names_;  // by party
  std::map<std::uintptr_t, Region> regions_;
  std::optional<Error> found_;
};

}  // namespace atoll_v1::atoll::checked

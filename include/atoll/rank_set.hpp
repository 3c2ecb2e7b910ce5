// Ranks of a World that exchange and compare values through its store.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/world.hpp"

namespace atoll_v1::atoll {

class WorldLink;  // internal: a reference to a World (src/world/world_internals.hpp)

// All ranks of a World, or some of them that include this rank. Copies are cheap. Any thread may
// call any function, but ranks that make several calls with the same text make them in the same
// order. Not for data of a training step: a call costs a message to rank 0 and one back.
class ATOLL_API RankSet {
 public:
  RankSet(World& world);  // NOLINT(google-explicit-constructor): all ranks
  // Throws Error(invalid_argument) unless the ranks are ranks of the World, each once, this one
  // included. Their order does not matter.
  RankSet(World& world, std::vector<int> ranks);

  World& world() const;  // throws Error(invalid_argument) if the World has been destroyed
  const std::vector<int>& ranks() const noexcept { return ranks_; }  // in ascending order
  bool is_first() const;  // true on the lowest rank of the set

  // Returns a key that no other call of this set, and no other set, uses. Ranks that make the same
  // calls with the same `subject` get the same keys. Errors of exchange() name the subject.
  std::string key(std::string_view subject) const;
  // Returns the values that the ranks of the set passed, in the order of ranks(). `key` comes from
  // key(). Collective over the set; blocks. Without `timeout`, Config::timeout applies. Errors are
  // those of World::exchange(). A rank that has timed out may call it again with the same key.
  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    std::optional<std::chrono::milliseconds> timeout = {}) const;
  // The same, but a stop that is requested on one rank before the exchange is complete ends it: all
  // ranks, also those that call it later, throw Error(aborted) with the text `why` of that rank.
  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    std::optional<std::chrono::milliseconds> timeout,
                                    const std::stop_token& stop, std::string_view why) const;
  const WorldLink& link() const noexcept { return *world_; }  // for the library itself

 private:
  std::shared_ptr<const WorldLink> world_;
  std::vector<int> ranks_;
  std::string suffix_;  // ends the store keys of a set of some ranks; empty for all ranks
};

// A value that must be equal on all ranks, with its name.
struct Declaration {
  std::string subject;  // name of the value, such as "the shape of parameter w of unit head"
  std::string value;    // the value as text, such as "4 x 8"
  friend bool operator==(const Declaration&, const Declaration&) = default;
};

// Calls `declare` on every rank of the set and compares the results. A World converts to the set of
// all its ranks. Collective over the set; blocks.
//
// If `declare` throws on some ranks, every rank throws the error of the lowest of them; the text on
// the other ranks names that rank. If the lists differ, every rank throws Error(mismatch) that
// names `call`, the first subject with different values, and two ranks with their values. Lists
// with the same values so far must continue with the same subject. Therefore a list has counts and
// names before the values that depend on them. If a rank does not call agree() before the timeout
// (by default Config::timeout), or has left the job, the error on the other ranks names `call` and
// that rank.
//
// Each rank sends a short digest of its list. Only if the digests differ, two ranks send digests of
// parts of their lists until the first difference is found, and then its entry. Lists and texts may
// have any size; a text above 64 KiB is cut in the error.
//
// If a stop is requested on one rank before all ranks have called agree(), every rank throws
// Error(aborted), which names `call` and the rank of the stop. Ranks that call it later do too.
ATOLL_API void agree(const RankSet& group, std::string_view call,
                     const std::function<std::vector<Declaration>()>& declare,
                     std::optional<std::chrono::milliseconds> timeout = {},
                     const std::stop_token& stop = {});

}  // namespace atoll_v1::atoll

// Ranks of a World that exchange values, such as the ranks of an engine.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "world/world_internals.hpp"

namespace atoll_v1::atoll {

// All ranks of a World, or some of them that include this rank.
class RankSet {
 public:
  RankSet(World& world);  // NOLINT(google-explicit-constructor): all ranks
  RankSet(World& world, std::vector<int> ranks);

  World& world() const { return world_.get(); }  // throws if the World has been destroyed
  const WorldLink& link() const noexcept { return world_; }
  const std::vector<int>& ranks() const noexcept { return ranks_; }  // the ranks in ascending order
  bool is_first() const;  // true on the lowest rank of the group

  // Returns a store key that no other call of this group, and no other group, uses. Ranks that make
  // the same calls with the same `subject` get the same keys.
  std::string key(std::string_view subject) const;
  // Returns the values that the ranks of the group passed, in the order of ranks(). `key` comes
  // from key(). Collective over the group; blocks. Errors are those of World::exchange(). Without
  // `timeout`, Config::timeout applies. A rank that has timed out may call it again with the same
  // key.
  std::vector<std::string> exchange(std::string_view key, std::string_view mine,
                                    std::optional<std::chrono::milliseconds> timeout = {}) const;

 private:
  WorldLink world_;
  std::vector<int> ranks_;
  std::string suffix_;  // ends the store keys of a group of some ranks; empty for all ranks
};

}  // namespace atoll_v1::atoll

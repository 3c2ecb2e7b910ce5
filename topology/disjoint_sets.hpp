// Disjoint sets of the numbers 0, 1, 2, ... (union-find with path halving).
#pragma once

#include <cstddef>
#include <vector>

namespace atoll_v1::atoll {

class DisjointSets {
 public:
  explicit DisjointSets(std::size_t size) {
    while (parents_.size() < size) add();
  }

  // Adds the next number, alone in its set, and returns it.
  std::size_t add() {
    parents_.push_back(parents_.size());
    return parents_.back();
  }
  // Returns the number that stands for the set of a number.
  std::size_t root(std::size_t number) {
    while (parents_[number] != number) number = parents_[number] = parents_[parents_[number]];
    return number;
  }
  // Joins two sets. The root of the first set becomes the root of both.
  void join(std::size_t a, std::size_t b) { parents_[root(b)] = root(a); }

 private:
  std::vector<std::size_t> parents_;
};

}  // namespace atoll_v1::atoll

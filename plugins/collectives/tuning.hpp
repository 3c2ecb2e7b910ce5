// Chooses the algorithm of an operation over several hosts: the user's choice, else the built-in
// one.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/layout.hpp"

namespace atoll_collectives {

enum class Algorithm : std::int32_t {
  flat,       // every rank exchanges data with every other rank
  ring,       // every rank passes data on to the next rank
  chain,      // every host passes data on to the next host
  doubling,   // one rank per host exchanges all data with hosts at distance 1, 2, 4, ...
  halving,    // all ranks exchange halves, quarters, ... with hosts at distance 1, 2, 4, ...
  two_level,  // counterparts exchange data between hosts, shared memory moves it within a host
};

// The N of a line "connections N" in `group.tuning`: connections between two ranks on each rail. 0
// leaves the number to the backend.
int connections_of(const atoll_group& group);

class Tuning {
 public:
  // Reads and checks `group.tuning`. Throws Error(ATOLL_INVALID_ARGUMENT).
  Tuning(const atoll_group& group, const Layout& layout);

  // `bytes` is the size of the whole tensor. The last matching rule counts: first the built-in
  // rules, then the user's. If sums must be deterministic, built-in rules that change the order or
  // the roundings of flat do not match, and a user's rule that does so becomes flat.
  Algorithm choose(const atoll_operation& operation, std::uint64_t bytes) const noexcept;

 private:
  struct Rule {
    std::int32_t kind;
    std::uint64_t min_bytes;
    Algorithm algorithm;
  };
  void add(std::string_view line);
  bool ordered(Algorithm choice, std::int32_t dtype) const noexcept;

  std::vector<Rule> rules_;
  bool deterministic_ = false;
  int hosts_ = 1;
  int ranks_per_host_ = 1;     // of the host with the most ranks
  bool tree_of_hosts_ = true;  // Layout::is_subtree()
};

}  // namespace atoll_collectives

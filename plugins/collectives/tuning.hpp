// Chooses the algorithm for an operation over several hosts: the algorithm that the user
// configured, or else the built-in choice.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/layout.hpp"

namespace atoll_collectives {

enum class Algorithm : std::int32_t {
  flat,      // every rank exchanges data with every other rank
  ring,      // every rank passes data on to the next rank
  chain,     // every host passes data on to the next host
  doubling,  // one rank per host exchanges all data with hosts at distance 1, 2, 4, ...
  halving,   // all ranks exchange halves, quarters, ... with hosts at distance 1, 2, 4, ...
  // Each rank exchanges data with one rank of each other host, and through shared memory with the
  // ranks of its host.
  two_level,
};

// Returns the number N of a line "connections N" in `group.tuning`: the number of connections
// between two ranks on each rail. Returns 0 if there is no such line; the backend then chooses the
// number.
int connections_of(const atoll_group& group);

class Tuning {
 public:
  // Parses the rules in `group.tuning`. Throws Error(ATOLL_INVALID_ARGUMENT) if a rule is invalid.
  Tuning(const atoll_group& group, const Layout& layout);

  // Returns the algorithm for `operation`; `bytes` is the size of the whole tensor. The built-in
  // rules come first, then the user's rules, and the last rule that matches decides. If sums must
  // be deterministic, built-in rules are skipped if their algorithm sums in another order or rounds
  // more often than `flat`, and a user's rule for such an algorithm selects `flat`.
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
  int ranks_per_host_ = 1;     // number of ranks on the host with the most ranks
  bool tree_of_hosts_ = true;  // true if two-level sums are in the order of flat sums
};

}  // namespace atoll_collectives

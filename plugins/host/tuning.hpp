// Which algorithm an operation takes: the user's choice, else this backend's own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/group.hpp"

namespace atoll_sdk::host {

enum class Algorithm : std::int32_t {
  flat,       // every rank exchanges with every other one
  ring,       // every rank passes data on to the next one
  chain,      // every host passes data on to the next one
  doubling,   // one rank per host, with hosts at distance 1, 2, 4, ...
  halving,    // the same by halves, quarters, ..., and all ranks of a host
  two_level,  // between hosts by twins, inside them through shared memory
};

// What of a communicator decides.
struct Shape {
  int hosts = 1;
  int ranks_per_host = 1;  // of the host that has most
};

// "connections N" of `group.tuning`: streams between two ranks on each rail; 0: the backend
// chooses.
int connections_of(const atoll_group& group);

class Tuning {
 public:
  Tuning() = default;
  // `group.tuning` is checked here. Throws Error(ATOLL_INVALID_ARGUMENT).
  Tuning(const atoll_group& group, const atoll_sdk::Layout& layout);

  // For an operation over several hosts; `bytes` of the whole tensor. The last rule that fits
  // counts: of the backend's own, then of the user's. Where sums have to be deterministic, rules of
  // the backend whose order of the sum or whose roundings differ from those of flat do not fit, and
  // the user's choice of such an algorithm becomes flat.
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
  Shape shape_;
  bool tree_of_hosts_ = true;  // two levels sum in the order of one
};

}  // namespace atoll_sdk::host

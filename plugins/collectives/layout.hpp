// Which ranks of a group share a host.
#pragma once

#include <cstddef>
#include <vector>

#include "atoll/plugin.h"

namespace atoll_collectives {

// Hosts are numbered in the order of their lowest rank. A local rank counts the ranks of one host.
class Layout {
 public:
  explicit Layout(const atoll_group& group);

  int hosts() const noexcept { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const noexcept { return host_[static_cast<std::size_t>(rank)]; }
  int local_of(int rank) const noexcept { return local_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& ranks_of(int host) const noexcept {
    return ranks_[static_cast<std::size_t>(host)];
  }
  // The rank of `host` that exchanges data with `rank`, a rank of another host. Both have the same
  // local rank, modulo the number of ranks on `host`.
  int counterpart(int rank, int host) const noexcept;
  // All ranks of other hosts that `rank` exchanges data with: its counterparts, and the ranks that
  // have `rank` as their counterpart.
  std::vector<int> counterparts(int rank) const;
  // The number of ranks on the host with the fewest ranks.
  int fewest_ranks() const noexcept;
  // True if an adjacent-pair tree over the ranks of each host, followed by one over the hosts, is
  // the adjacent-pair tree over all ranks: all hosts have the same power of two of consecutive
  // ranks.
  bool tree_of_hosts() const noexcept { return tree_of_hosts_; }

 private:
  std::vector<int> host_;   // indexed by rank
  std::vector<int> local_;  // indexed by rank
  std::vector<std::vector<int>> ranks_;
  bool tree_of_hosts_ = true;
};

}  // namespace atoll_collectives

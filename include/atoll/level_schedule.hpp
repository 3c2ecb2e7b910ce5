// The schedule of two-level collectives: which ranks exchange which blocks between hosts. It is a
// pure, header-only computation that moves no data. The library and the backends, which do not
// include each other's headers, both use it.
//
// Terms. A block is the part of the whole tensor that one rank contributes to an all_gather or
// receives from a reduce_scatter; that rank is the owner of the block. Each block has one holder on
// each host: the rank that receives the block from the owner (all_gather), or that sums the block
// over the ranks of its host (reduce_scatter). On the owner's host, the owner is the holder. A
// counterpart of a rank is a rank of another host with which the rank exchanges blocks.
//
// all_gather:     Each owner sends its block to the holders on the other hosts. Then every holder
//                 shares the blocks that it holds with the ranks of its host.
// reduce_scatter: The opposite order. Every holder sums each block that it holds over the ranks of
//                 its host. Then the holders send these partial sums to the owner of the block,
//                 which adds them in the order of the hosts.
//
// For a tensor of S bytes, each of H hosts sends and receives (H - 1) / H x S bytes, which is the
// minimum. A flat exchange with h ranks per host sends and receives h times as many bytes per host.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

namespace atoll_levels {

// Records which ranks of a group run on which host. Hosts are numbered in the order of their lowest
// ranks. The local rank of a rank is its index among the ranks of its host.
class HostLayout {
 public:
  // `hosts[rank]` is a number that identifies the host of `rank`. The numbers need not be
  // consecutive.
  explicit HostLayout(std::span<const int> hosts) {
    std::map<int, int> numbers;
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      const auto [entry, is_new] = numbers.emplace(hosts[rank], static_cast<int>(numbers.size()));
      if (is_new) ranks_.emplace_back();
      auto& ranks = ranks_[static_cast<std::size_t>(entry->second)];
      // If the ranks of a host are not consecutive, a reduction tree over these ranks is not a
      // subtree of the reduction tree over all ranks.
      if (!ranks.empty() && ranks.back() + 1 != static_cast<int>(rank)) are_consecutive_ = false;
      host_.push_back(entry->second);
      local_.push_back(static_cast<int>(ranks.size()));
      ranks.push_back(static_cast<int>(rank));
    }
  }

  int size() const noexcept { return static_cast<int>(host_.size()); }
  int hosts() const noexcept { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const noexcept { return host_[static_cast<std::size_t>(rank)]; }
  int local_of(int rank) const noexcept { return local_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& ranks_of(int host) const noexcept {
    return ranks_[static_cast<std::size_t>(host)];
  }
  // Returns the rank of `host` with the same local rank as `rank`, modulo the number of ranks on
  // `host`: the rank of `host` that holds the block of `rank`. Returns `rank` if it runs on `host`.
  int counterpart(int rank, int host) const noexcept {
    const auto& ranks = ranks_of(host);
    return ranks[static_cast<std::size_t>(local_of(rank)) % ranks.size()];
  }
  // Returns the holders of the block of `owner` on the other hosts, in the order of the hosts.
  std::vector<int> holders(int owner) const {
    std::vector<int> result;
    for (int host = 0; host < hosts(); ++host) {
      if (host != host_of(owner)) result.push_back(counterpart(owner, host));
    }
    return result;
  }
  // Returns the owners of the blocks of other hosts that `rank` holds, in ascending order.
  std::vector<int> owners_held_by(int rank) const {
    std::vector<int> result;
    for (int owner = 0; owner < size(); ++owner) {
      if (host_of(owner) != host_of(rank) && counterpart(owner, host_of(rank)) == rank) {
        result.push_back(owner);
      }
    }
    return result;
  }
  // Returns all counterparts of `rank`: the holders of its block, and the owners of the blocks that
  // it holds, each once.
  std::vector<int> counterparts(int rank) const {
    std::vector<int> result = holders(rank);
    for (const int owner : owners_held_by(rank)) {
      if (std::ranges::find(result, owner) == result.end()) result.push_back(owner);
    }
    return result;
  }
  // Returns the number of ranks on the host with the fewest ranks.
  int fewest_ranks() const noexcept {
    std::size_t fewest = ranks_.empty() ? 0 : ranks_.front().size();
    for (const auto& ranks : ranks_) fewest = std::min(fewest, ranks.size());
    return static_cast<int>(fewest);
  }
  // Returns the number of ranks on each host if there are several hosts, all with the same number
  // of ranks, at least two, and if the ranks of each host are consecutive. Otherwise returns 0.
  int ranks_per_host() const noexcept {
    return hosts() > 1 && fewest_ranks() > 1 && is_even() ? fewest_ranks() : 0;
  }
  // Returns true if an adjacent-pair tree over the ranks of each host, followed by an adjacent-pair
  // tree over the hosts, is the same tree as the adjacent-pair tree over all ranks.
  bool is_subtree() const noexcept {
    return hosts() == 1 ||
           (is_even() && std::has_single_bit(static_cast<unsigned>(fewest_ranks())));
  }

 private:
  // Returns true if all hosts have the same number of ranks, and those of each are consecutive.
  bool is_even() const noexcept { return are_consecutive_ && fewest_ranks() * hosts() == size(); }

  std::vector<int> host_;                // index of each rank's host
  std::vector<int> local_;               // each rank's index on its host
  std::vector<std::vector<int>> ranks_;  // ranks on each host, by the index of the host
  bool are_consecutive_ = true;
};

}  // namespace atoll_levels

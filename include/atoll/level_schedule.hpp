// The schedule of collectives in two levels: across hosts, and inside each host. It is pure and
// header-only, for the library and for the backends, which do not include each other; each of them
// moves the bytes in its own way.
//
// Vocabulary. Block: the part of the whole tensor that one rank contributes to an all_gather or
// receives from a reduce_scatter; that rank is its owner. Counterpart: the rank of another host
// that a rank exchanges blocks with. Holder of a block on a host: the rank there that receives the
// block from its owner (all_gather), or adds up the block over the ranks of that host
// (reduce_scatter). The owner is the holder on its own host.
//
// all_gather:     each owner sends its block to the holders on the other hosts (transfers()); then
//                 every holder shares its blocks with the ranks of its host.
// reduce_scatter: the same, backwards. Every holder adds up its blocks over the ranks of its host;
//                 then the holders send their partial sums to the owner (transfers(), reversed),
//                 which adds them in the order of the hosts.
//
// Of S bytes, each of H hosts sends and receives (H - 1) / H x S, the least that is possible. A
// flat exchange between N ranks sends up to (N - 1) / N x S times the ranks of a host.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

namespace atoll_levels {

// Which ranks of a group run on which host. Hosts are numbered in the order of their lowest rank;
// a local rank counts the ranks of one host.
class HostLayout {
 public:
  // `hosts`: an arbitrary number for the host of each rank, by rank.
  explicit HostLayout(std::span<const int> hosts) {
    std::map<int, int> numbers;
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      const auto [entry, is_new] = numbers.emplace(hosts[rank], static_cast<int>(numbers.size()));
      if (is_new) ranks_.emplace_back();
      auto& ranks = ranks_[static_cast<std::size_t>(entry->second)];
      // Ranks of one host that do not follow each other make another tree than all ranks do.
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
  // The rank of `host` that exchanges blocks with `rank`: it has the same local rank, modulo the
  // number of ranks on `host`. For the host of `rank` itself: `rank`.
  int counterpart(int rank, int host) const noexcept {
    const auto& ranks = ranks_of(host);
    return ranks[static_cast<std::size_t>(local_of(rank)) % ranks.size()];
  }
  // The holder on `host` of the block that `owner` owns.
  int holder(int owner, int host) const noexcept { return counterpart(owner, host); }
  // All ranks of other hosts that `rank` exchanges blocks with: its counterparts, and the ranks that
  // have `rank` as their counterpart.
  std::vector<int> counterparts(int rank) const {
    std::vector<int> result;
    const int host = host_of(rank);
    for (int other = 0; other < hosts(); ++other) {
      if (other == host) continue;
      for (const int candidate : ranks_of(other)) {
        if (counterpart(candidate, host) == rank || counterpart(rank, other) == candidate) {
          result.push_back(candidate);
        }
      }
    }
    return result;
  }
  // The number of ranks on the host with the fewest.
  int fewest_ranks() const noexcept {
    std::size_t fewest = ranks_.empty() ? 0 : ranks_.front().size();
    for (const auto& ranks : ranks_) fewest = std::min(fewest, ranks.size());
    return static_cast<int>(fewest);
  }
  // The number of ranks on each host if it is the same for all, there are several hosts with
  // several ranks each, and the ranks of a host follow each other; else 0.
  int ranks_per_host() const noexcept {
    const auto each = static_cast<std::size_t>(fewest_ranks());
    const bool is_even =
        hosts() > 1 && each > 1 && are_consecutive_ && each * ranks_.size() == host_.size();
    return is_even ? static_cast<int>(each) : 0;
  }
  // True if an adjacent-pair tree over the ranks of each host, then over the hosts, is the
  // adjacent-pair tree over all ranks.
  bool is_subtree() const noexcept {
    if (hosts() == 1) return true;
    const auto each = static_cast<std::size_t>(fewest_ranks());
    return are_consecutive_ && each * ranks_.size() == host_.size() && std::has_single_bit(each);
  }

 private:
  std::vector<int> host_;   // indexed by rank
  std::vector<int> local_;  // indexed by rank
  std::vector<std::vector<int>> ranks_;
  bool are_consecutive_ = true;
};

// One block on its way between hosts in an all_gather; in a reduce_scatter its partial sum takes
// the same way back.
struct Transfer {
  int peer;   // the rank at the other end
  int owner;  // of the block
};

// The transfers of one rank across hosts.
struct Transfers {
  std::vector<Transfer> out;  // its own block, to the holder on each other host, in their order
  std::vector<Transfer> in;   // blocks that it holds on its host, from their owners, in their order

  Transfers reversed() && { return {std::move(in), std::move(out)}; }
};

inline Transfers transfers(const HostLayout& layout, int rank) {
  Transfers all;
  const int host = layout.host_of(rank);
  for (int other = 0; other < layout.hosts(); ++other) {
    if (other != host) all.out.push_back({layout.holder(rank, other), rank});
  }
  for (int owner = 0; owner < layout.size(); ++owner) {
    if (layout.host_of(owner) != host && layout.holder(owner, host) == rank) {
      all.in.push_back({owner, owner});
    }
  }
  return all;
}

// Runs `pieces` pieces through two stages, with up to `depth` pieces between start(k), which works
// inside the host, and finish(k), which works on what came from other hosts.
template <class Start, class Finish>
void run_pipeline(std::size_t pieces, std::size_t depth, const Start& start, const Finish& finish) {
  for (std::size_t k = 0; k < pieces + depth - 1; ++k) {
    if (k < pieces) start(k);
    if (k + 1 >= depth) finish(k + 1 - depth);
  }
}

}  // namespace atoll_levels

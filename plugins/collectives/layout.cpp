#include "collectives/layout.hpp"

#include <algorithm>
#include <bit>
#include <map>

namespace atoll_collectives {

Layout::Layout(const atoll_group& group) {
  std::map<int, int> number;  // from the group's host number to the one used here
  for (int rank = 0; rank < group.nranks; ++rank) {
    const auto [entry, added] =
        number.emplace(group.placements[rank]->host, static_cast<int>(ranks_.size()));
    if (added) ranks_.emplace_back();
    auto& ranks = ranks_[static_cast<std::size_t>(entry->second)];
    host_.push_back(entry->second);
    local_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(rank);
  }
  for (const auto& ranks : ranks_) {
    const bool consecutive = ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
    if (!consecutive || ranks.size() != ranks_.front().size() ||
        !std::has_single_bit(ranks.size())) {
      tree_of_hosts_ = false;
    }
  }
  if (hosts() == 1) tree_of_hosts_ = true;
}

int Layout::counterpart(int rank, int host) const noexcept {
  const auto& there = ranks_of(host);
  return there[static_cast<std::size_t>(local_of(rank)) % there.size()];
}

std::vector<int> Layout::counterparts(int rank) const {
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

int Layout::fewest_ranks() const noexcept {
  std::size_t fewest = ranks_.front().size();
  for (const auto& ranks : ranks_) fewest = std::min(fewest, ranks.size());
  return static_cast<int>(fewest);
}

}  // namespace atoll_collectives

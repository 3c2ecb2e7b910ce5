#include "message_plan.hpp"

#include <numeric>

namespace muon {

void choose_owners(std::vector<Matrix>& matrices, const Position& position) {
  const auto work = [&](std::size_t k) {
    return static_cast<double>(matrices[k].elements()) * static_cast<double>(matrices[k].side());
  };
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return work(a) > work(b); });
  std::vector<double> loads(static_cast<std::size_t>(position.replicas * position.ranks), 0.0);
  for (const std::size_t k : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    const auto place = static_cast<int>(least - loads.begin());
    matrices[k].replica = place / position.ranks;
    matrices[k].owner = place % position.ranks;
    *least += work(k);
  }
}

MessagePlan plan_messages(const std::vector<Matrix>& matrices, const std::vector<Piece>& places,
                          const Position& position) {
  const auto place = [&](int rank, std::size_t k) -> const Piece& {
    return places[static_cast<std::size_t>(rank) * matrices.size() + k];
  };
  MessagePlan plan;
  plan.offsets.resize(matrices.size());
  plan.pieces.resize(matrices.size());
  std::uint64_t mine_end = 0;
  for (int copy = 0; copy < position.replicas; ++copy) {
    const std::uint64_t copy_begin = mine_end;
    for (int peer = 0; peer < position.ranks; ++peer) {
      const std::uint64_t begin = mine_end;
      for (std::size_t k = 0; k < matrices.size(); ++k) {
        if (matrices[k].replica != copy || matrices[k].owner != peer) continue;
        plan.offsets[k] = mine_end;
        mine_end += place(position.rank, k).count;
      }
      if (copy == position.replica) plan.of_mine.push_back({begin, mine_end - begin});
    }
    plan.of_replica.push_back({copy_begin, mine_end - copy_begin});
  }
  std::uint64_t whole_end = position.ranks > 1 ? 0 : plan.of_mine.front().first;
  for (int peer = 0; peer < position.ranks; ++peer) {
    const std::uint64_t begin = whole_end;
    for (std::size_t k = 0; k < matrices.size(); ++k) {
      const Piece& theirs = place(peer, k);
      if (!position.owns(matrices[k]) || theirs.count == 0) continue;
      plan.pieces[k].push_back({theirs.first, theirs.count, whole_end});
      whole_end += theirs.count;
    }
    plan.of_whole.push_back({begin, whole_end - begin});
  }
  return plan;
}

}  // namespace muon

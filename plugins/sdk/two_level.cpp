#include "sdk/two_level.hpp"

#include <algorithm>
#include <array>

#include "sdk/describe.hpp"

namespace atoll_sdk {
namespace {

// A piece is large against what a meeting of the host's ranks costs, small against the whole.
constexpr std::size_t smallest_piece = 128 * 1024;
constexpr std::size_t largest_piece = 1024 * 1024;
constexpr std::size_t pieces_wanted = 16;
// Pieces under way at the same time: their sums lie in scratch memory until they are sent.
constexpr std::size_t depth = 4;
constexpr std::size_t scratch_budget = 32 * 1024 * 1024;

std::size_t largest_block(const std::vector<Block>& blocks) {
  std::size_t largest = 0;
  for (const auto& block : blocks) largest = std::max(largest, block.bytes);
  return largest;
}

// The same on every rank.
std::size_t piece_for(std::size_t largest, std::size_t limit) {
  const std::size_t wanted = largest / pieces_wanted / cache_line * cache_line;
  return std::max(
      std::min(std::clamp(wanted, smallest_piece, largest_piece), limit / cache_line * cache_line),
      cache_line);
}

// The part of a block that is in piece `k`.
Block piece_of(const Block& block, std::size_t k, std::size_t piece) {
  const std::size_t first = std::min(k * piece, block.bytes);
  return {block.offset + first, std::min(piece, block.bytes - first)};
}

std::byte* at(void* buffer, std::size_t offset) { return static_cast<std::byte*>(buffer) + offset; }

class ReduceScatter {
 public:
  ReduceScatter(Group& group, const atoll_operation& operation, Extents extents,
                const std::vector<Block>& blocks, std::byte* out, Exchange& exchange)
      : group_(group),
        operation_(operation),
        extents_(extents),
        blocks_(blocks),
        out_(out),
        exchange_(exchange),
        host_(group.layout.host_of(group.rank())) {
    for (int rank = 0; rank < group.size(); ++rank) {
      if (reducer(rank) == group.rank() && rank != group.rank()) sends_to_.push_back(rank);
    }
    for (int host = 0; host < group.layout.hosts(); ++host) {
      if (host != host_) receives_from_.push_back(group.layout.twin(group.rank(), host));
    }
    // By the most that any rank needs, so that all take the same pieces.
    const auto most =
        static_cast<std::size_t>(group.size()) + static_cast<std::size_t>(group.layout.hosts());
    const std::size_t largest = largest_block(blocks);
    piece_ = piece_for(largest, scratch_budget / depth / most);
    pieces_ = (largest + piece_ - 1) / piece_;
    const std::size_t slots = sends_to_.size() + receives_from_.size();
    scratch_ = group.scratch(depth * slots * piece_);
  }

  void run() {
    for (std::size_t k = 0; k < pieces_ + depth - 1; ++k) {
      if (k < pieces_) start(k);
      if (k + 1 >= depth) finish(k + 1 - depth);
    }
  }

 private:
  // Who sums a rank's block on this host.
  int reducer(int rank) const {
    return group_.layout.host_of(rank) == host_ ? rank : group_.layout.twin(rank, host_);
  }
  std::byte* slot(std::size_t k, std::size_t index) const {
    const std::size_t slots = sends_to_.size() + receives_from_.size();
    return scratch_.data() + ((k % depth) * slots + index) * piece_;
  }
  const Block& block(int rank) const { return blocks_[static_cast<std::size_t>(rank)]; }

  // Sums the host's part of piece k of all blocks, sends what belongs elsewhere, expects the rest.
  void start(std::size_t k) {
    auto& sent = sent_[k % depth];
    for (std::size_t i = 0; i < sent.size(); ++i) exchange_.run_until_sent(sends_to_[i], sent[i]);
    std::size_t next_slot = 0;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const Block piece = piece_of(block(rank), k, piece_);
      const int who = reducer(rank);
      std::byte* dst = nullptr;
      if (rank == group_.rank()) {
        dst = out_ + k * piece_;
      } else if (who == group_.rank()) {
        dst = slot(k, next_slot++);
      }
      group_.slices.push_back({piece.offset, piece.bytes, group_.layout.local_of(who), dst});
    }
    const std::int32_t op = operation_.op == ATOLL_AVG ? ATOLL_SUM : operation_.op;
    sum(group_, operation_, extents_, {.op = op}, &exchange_);
    sent.clear();
    for (std::size_t i = 0; i < sends_to_.size(); ++i) {
      const std::size_t bytes = piece_of(block(sends_to_[i]), k, piece_).bytes;
      sent.push_back(exchange_.send(sends_to_[i], {slot(k, i), bytes}));
    }
    auto& expected = expected_[k % depth];
    expected.clear();
    const std::size_t bytes = piece_of(block(group_.rank()), k, piece_).bytes;
    for (std::size_t i = 0; i < receives_from_.size(); ++i) {
      expected.push_back(exchange_.recv(receives_from_[i], {slot(k, sends_to_.size() + i), bytes}));
    }
    exchange_.start();
  }

  // Combines the sums of all hosts.
  void finish(std::size_t k) {
    const auto& expected = expected_[k % depth];
    for (std::size_t i = 0; i < expected.size(); ++i) {
      exchange_.run_until_received(receives_from_[i], expected[i]);
    }
    const std::size_t bytes = piece_of(block(group_.rank()), k, piece_).bytes;
    void* dst = out_ + k * piece_;
    std::size_t other = 0;
    for (int host = 0; host < group_.layout.hosts(); ++host) {
      group_.parts[static_cast<std::size_t>(host)] =
          host == host_ ? dst : slot(k, sends_to_.size() + other++);
    }
    group_.reduce({sizeof(atoll_reduction), &dst, group_.parts.data(), nullptr, 1,
                   group_.layout.hosts(), bytes / dtype_size(operation_.dtype), operation_.dtype,
                   operation_.op, group_.size(), 0});
  }

  Group& group_;
  const atoll_operation& operation_;
  Extents extents_;
  const std::vector<Block>& blocks_;
  std::byte* out_;
  Exchange& exchange_;
  int host_;
  std::vector<int> sends_to_;       // whose blocks this rank sums for its host
  std::vector<int> receives_from_;  // one per other host, in their order
  std::size_t piece_ = 0;
  std::size_t pieces_ = 0;
  std::span<std::byte> scratch_;
  std::array<std::vector<std::uint64_t>, depth> sent_;
  std::array<std::vector<std::uint64_t>, depth> expected_;
};

}  // namespace

std::vector<int> twins(const Layout& layout, int rank) {
  std::vector<int> result;
  const int host = layout.host_of(rank);
  for (int other = 0; other < layout.hosts(); ++other) {
    if (other == host) continue;
    for (const int candidate : layout.ranks_of(other)) {
      if (layout.twin(candidate, host) == rank || layout.twin(rank, other) == candidate) {
        result.push_back(candidate);
      }
    }
  }
  return result;
}

void two_level_all_gather(Group& group, const atoll_operation& operation, Extents extents,
                          const std::vector<Block>& blocks, Offer own, Exchange& exchange) {
  const Layout& layout = group.layout;
  const int host = layout.host_of(group.rank());
  const std::size_t largest = largest_block(blocks);
  const std::size_t piece = piece_for(largest, largest_piece);
  const std::size_t pieces = (largest + piece - 1) / piece;
  const auto block = [&](int rank) -> const Block& {
    return blocks[static_cast<std::size_t>(rank)];
  };

  const auto* from =
      static_cast<const std::byte*>(own.from == Offer::From::src ? operation.src : operation.dst);
  for (int other = 0; other < layout.hosts(); ++other) {
    if (other == host) continue;
    exchange.send(layout.twin(group.rank(), other), {from + own.offset, own.bytes});
  }
  // Whose blocks come to this rank, and when each piece of them is there.
  std::vector<std::pair<int, std::vector<std::uint64_t>>> incoming;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (layout.host_of(rank) == host || layout.twin(rank, host) != group.rank()) continue;
    auto& tickets = incoming.emplace_back(rank, std::vector<std::uint64_t>()).second;
    for (std::size_t k = 0; k < pieces; ++k) {
      const Block part = piece_of(block(rank), k, piece);
      tickets.push_back(exchange.recv(rank, {at(operation.dst, part.offset), part.bytes}));
    }
  }
  exchange.start();

  for (const int rank : layout.ranks_of(host)) {
    auto& offers = group.offers[static_cast<std::size_t>(layout.local_of(rank))];
    const std::size_t offset = own.from == Offer::From::src ? 0 : block(rank).offset;
    offers.push_back({own.from, offset, block(rank).offset, block(rank).bytes, everybody});
  }
  move(group, operation, extents, &exchange);

  for (std::size_t k = 0; k < pieces; ++k) {
    for (const auto& [rank, tickets] : incoming) exchange.run_until_received(rank, tickets[k]);
    for (int rank = 0; rank < group.size(); ++rank) {
      if (layout.host_of(rank) == host) continue;
      const Block part = piece_of(block(rank), k, piece);
      auto& offers =
          group.offers[static_cast<std::size_t>(layout.local_of(layout.twin(rank, host)))];
      offers.push_back({Offer::From::dst, part.offset, part.offset, part.bytes, everybody});
    }
    move(group, operation, extents, &exchange);
  }
}

void two_level_reduce_scatter(Group& group, const atoll_operation& operation, Extents extents,
                              const std::vector<Block>& blocks, std::byte* out,
                              Exchange& exchange) {
  ReduceScatter(group, operation, extents, blocks, out, exchange).run();
}

}  // namespace atoll_sdk

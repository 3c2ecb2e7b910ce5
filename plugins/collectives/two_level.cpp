// Two-level collectives: they combine data within each host first, so that as few bytes as possible
// cross between hosts. For a tensor of S bytes, each of H hosts sends and receives (H - 1) / H S
// bytes; a flat exchange with h ranks per host sends h times as many. A reduce moves S bytes per
// host.
//
// Data is processed in pieces, so that the network and shared memory are busy at the same time.
#include <algorithm>
#include <array>

#include "collectives/collectives.hpp"

namespace atoll_collectives {
namespace {

// Limits for the size of the pieces in which a tensor is processed. A piece must be large enough to
// hide the cost of synchronizing the ranks, and small compared with the whole tensor.
constexpr std::size_t smallest_level_piece = 128 * 1024;
constexpr std::size_t largest_level_piece = 1024 * 1024;
constexpr std::size_t level_pieces_wanted = 16;
// Number of pieces in flight. The sums of these pieces stay in scratch memory until they have been
// sent.
constexpr std::size_t depth = 4;
constexpr std::size_t level_scratch = 32 * 1024 * 1024;
// Maximum number of slices of one sum(): each needs a cache line of the staging buffers.
constexpr std::size_t most_slices = staging_bytes / cache_line;

std::size_t largest_block(const std::vector<Block>& blocks) {
  std::size_t largest = 0;
  for (const auto& block : blocks) largest = std::max(largest, block.bytes);
  return largest;
}

// Returns the size of a piece in bytes, which is the same on every rank.
std::size_t piece_for(std::size_t largest, std::size_t limit) {
  const std::size_t wanted = largest / level_pieces_wanted / cache_line * cache_line;
  return std::max(std::min(std::clamp(wanted, smallest_level_piece, largest_level_piece),
                           limit / cache_line * cache_line),
                  cache_line);
}

// Runs `pieces` pieces through two stages. start(k) works inside the host and sends piece k to
// other hosts; finish(k) works on the data that came from other hosts. Up to `depth` pieces are
// started but not finished at a time.
template <class Start, class Finish>
void run_pipeline(std::size_t pieces, const Start& start, const Finish& finish) {
  for (std::size_t k = 0; k < pieces + depth - 1; ++k) {
    if (k < pieces) start(k);
    if (k + 1 >= depth) finish(k + 1 - depth);
  }
}

// A reduce_scatter that works piece by piece. The caller calls start() and later finish() for each
// piece, in order, with at most `depth` pieces in flight.
class ReduceScatter {
 public:
  // If `out` is null, each reduced piece of this rank's block stays in scratch memory until `depth`
  // more pieces have been started.
  ReduceScatter(Group& group, const atoll_operation& operation, Extents extents,
                const std::vector<Block>& blocks, std::byte* out, Exchange& exchange)
      : group_(group),
        operation_(operation),
        extents_(extents),
        blocks_(blocks),
        out_(out),
        exchange_(exchange),
        host_(group.layout.host_of(group.rank())),
        sends_to_(group.layout.owners_held_by(group.rank())),
        receives_from_(group.layout.holders(group.rank())) {
    std::erase_if(sends_to_, [&](int owner) { return block(owner).bytes == 0; });
    const std::size_t largest = largest_block(blocks);
    piece_ = piece_for(largest, level_scratch / depth / two_level_slots(group.layout));
    pieces_ = std::max<std::size_t>(pieces_of(largest, piece_), 1);
    const std::size_t slots = sends_to_.size() + receives_from_.size();
    scratch_ = group.scratch(depth * (slots + (out == nullptr ? 1 : 0)) * piece_);
    if (out == nullptr) kept_ = scratch_.data() + depth * slots * piece_;
  }

  std::size_t pieces() const { return pieces_; }
  std::size_t piece_bytes() const { return piece_; }
  // Returns the memory for the reduced piece k of this rank's block.
  std::byte* own(std::size_t k) const {
    return kept_ == nullptr ? out_ + k * piece_ : kept_ + k % depth * piece_;
  }

  // Sums this host's contributions to piece k of all blocks, sends the results to owners on other
  // hosts, and queues the receives for this rank's block.
  void start(std::size_t k) {
    auto& sent = sent_[k % depth];
    for (std::size_t i = 0; i < sent.size(); ++i) exchange_.run_until_sent(sends_to_[i], sent[i]);
    std::size_t next_slot = 0;
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (block(rank).bytes == 0) continue;
      if (group_.slices.size() == most_slices) sum_slices();
      const Block piece = piece_of(block(rank), k, piece_);
      const int who = group_.layout.counterpart(rank, host_);
      std::byte* dst = nullptr;
      if (rank == group_.rank()) {
        dst = own(k);
      } else if (who == group_.rank()) {
        dst = slot(k, next_slot++);
      }
      group_.slices.push_back({piece.offset, piece.bytes, group_.layout.local_of(who), dst});
    }
    sum_slices();
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

  // Combines the sums of all hosts for piece k of this rank's block.
  void finish(std::size_t k) {
    const std::size_t bytes = piece_of(block(group_.rank()), k, piece_).bytes;
    if (bytes == 0) return;
    const auto& expected = expected_[k % depth];
    for (std::size_t i = 0; i < expected.size(); ++i) {
      exchange_.run_until_received(receives_from_[i], expected[i]);
    }
    void* dst = own(k);
    std::size_t other = 0;
    for (int host = 0; host < group_.layout.hosts(); ++host) {
      group_.parts[static_cast<std::size_t>(host)] =
          host == host_ ? dst : slot(k, sends_to_.size() + other++);
    }
    const auto hosts = static_cast<std::size_t>(group_.layout.hosts());
    reduce_arrays(operation_, operation_.op,
                  {.dsts = {&dst, 1},
                   .parts = std::span(group_.parts).first(hosts),
                   .count = bytes / dtype_size(operation_.dtype),
                   .divisor = group_.size()});
  }

 private:
  std::byte* slot(std::size_t k, std::size_t index) const {
    const std::size_t slots = sends_to_.size() + receives_from_.size();
    return scratch_.data() + ((k % depth) * slots + index) * piece_;
  }
  const Block& block(int rank) const { return blocks_[static_cast<std::size_t>(rank)]; }
  void sum_slices() {
    sum(group_, operation_, extents_, {.op = partial_op(operation_)}, &exchange_);
  }

  Group& group_;
  const atoll_operation& operation_;
  Extents extents_;
  const std::vector<Block>& blocks_;
  std::byte* out_;
  Exchange& exchange_;
  int host_;
  std::vector<int> sends_to_;       // ranks that get this host's sum of their block from this rank
  std::vector<int> receives_from_;  // ranks that send sums for this rank's block, in host order
  std::size_t piece_ = 0;
  std::size_t pieces_ = 0;
  std::span<std::byte> scratch_;
  // Scratch memory for reduced pieces of this rank's block; null unless `out_` is null.
  std::byte* kept_ = nullptr;
  std::array<std::vector<std::uint64_t>, depth> sent_;
  std::array<std::vector<std::uint64_t>, depth> expected_;
};

// Returns the block of each rank for a reduce. The tensor is split evenly among the ranks that own
// a block; the other ranks have empty blocks.
std::vector<Block> owned_blocks(const Layout& layout, int root, std::size_t size) {
  const auto owns = [&](int rank) {
    return (layout.host_of(rank) == layout.host_of(root)) == (layout.hosts() == 2);
  };
  int owners = 0;
  for (int rank = 0; rank < layout.size(); ++rank) owners += owns(rank) ? 1 : 0;
  const EvenSplit split(size, owners);
  std::vector<Block> blocks;
  int next = 0;  // number of ranks so far that own a block
  for (int rank = 0; rank < layout.size(); ++rank) {
    const Block block = split[next];
    blocks.push_back({block.offset, owns(rank) ? block.bytes : 0});
    next += owns(rank) ? 1 : 0;
  }
  return blocks;
}

}  // namespace

// A rank receives one partial sum of its block from each other host, and keeps its own. The first
// rank of the smallest host handles the most blocks: on each other host, every `fewest`-th rank
// sends it a block.
std::size_t two_level_slots(const Layout& layout) {
  const auto hosts = static_cast<std::size_t>(layout.hosts());
  const auto fewest = static_cast<std::size_t>(layout.fewest_ranks());
  std::size_t held = 0;  // blocks that the first rank of the smallest host handles, with its own
  for (int host = 0; host < layout.hosts(); ++host) {
    held += (layout.ranks_of(host).size() + fewest - 1) / fewest;
  }
  return held - 1 + hosts;
}

void two_level_all_gather(Group& group, const atoll_operation& operation, Extents extents,
                          const std::vector<Block>& blocks, Offer own, Exchange& exchange) {
  const Layout& layout = group.layout;
  const int host = layout.host_of(group.rank());
  const std::size_t largest = largest_block(blocks);
  const std::size_t piece = piece_for(largest, largest_level_piece);
  const std::size_t pieces = pieces_of(largest, piece);
  const auto block = [&](int rank) -> const Block& {
    return blocks[static_cast<std::size_t>(rank)];
  };

  const std::byte* from = own.from == Offer::From::src ? source(operation) : destination(operation);
  for (const int holder : layout.holders(group.rank())) {
    exchange.send(holder, {from + own.offset, own.bytes});
  }
  // The ranks from which this rank receives blocks, with the receive tickets of the pieces.
  std::vector<std::pair<int, std::vector<std::uint64_t>>> incoming;
  for (const int owner : layout.owners_held_by(group.rank())) {
    auto& tickets = incoming.emplace_back(owner, std::vector<std::uint64_t>()).second;
    for (std::size_t k = 0; k < pieces; ++k) {
      const Block part = piece_of(block(owner), k, piece);
      tickets.push_back(exchange.recv(owner, {destination(operation) + part.offset, part.bytes}));
    }
  }
  exchange.start();

  for (const int rank : layout.ranks_of(host)) {
    const std::size_t offset = own.from == Offer::From::src ? 0 : block(rank).offset;
    group.offer(layout.local_of(rank),
                {own.from, offset, block(rank).offset, block(rank).bytes, everybody});
  }
  move(group, operation, extents, &exchange);

  for (std::size_t k = 0; k < pieces; ++k) {
    for (const auto& [rank, tickets] : incoming) exchange.run_until_received(rank, tickets[k]);
    for (int rank = 0; rank < group.size(); ++rank) {
      if (layout.host_of(rank) == host) continue;
      const Block part = piece_of(block(rank), k, piece);
      group.offer(layout.local_of(layout.counterpart(rank, host)),
                  {Offer::From::dst, part.offset, part.offset, part.bytes, everybody});
    }
    move(group, operation, extents, &exchange);
  }
}

void two_level_reduce_scatter(Group& group, const atoll_operation& operation, Extents extents,
                              const std::vector<Block>& blocks, std::byte* out,
                              Exchange& exchange) {
  ReduceScatter reduction(group, operation, extents, blocks, out, exchange);
  run_pipeline(
      reduction.pieces(), [&](std::size_t k) { reduction.start(k); },
      [&](std::size_t k) { reduction.finish(k); });
}

// The owner of each block sends every piece to the root as soon as the piece is reduced.
void two_level_reduce(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const Layout& layout = group.layout;
  const int root = operation.peer;
  const auto& neighbours = layout.ranks_of(layout.host_of(root));
  const bool at_root = group.rank() == root;
  const std::size_t size = bytes(operation);
  const auto blocks = owned_blocks(layout, root, size);
  const auto block = [&](int rank) { return blocks[static_cast<std::size_t>(rank)]; };
  ReduceScatter reduction(group, operation, {size, at_root ? size : 0}, blocks,
                          at_root ? destination(operation) + block(root).offset : nullptr,
                          exchange);
  // Only the root reduces into its dst. On other ranks, dst is replaced by the scratch memory that
  // holds the reduced pieces.
  auto local = operation;
  if (!at_root) local.dst = reduction.own(0);
  const bool on_host = layout.host_of(group.rank()) == layout.host_of(root);
  const bool through_memory = on_host && std::ranges::any_of(neighbours, [&](int rank) {
                                return rank != root && block(rank).bytes > 0;
                              });
  std::array<std::uint64_t, depth> sent{};

  const auto deliver_on_host = [&](std::size_t k) {
    const std::size_t slot = k % depth * reduction.piece_bytes();
    for (const int rank : neighbours) {
      if (rank == root) continue;
      const Block part = piece_of(block(rank), k, reduction.piece_bytes());
      group.offer(layout.local_of(rank),
                  {Offer::From::dst, slot, part.offset, part.bytes, layout.local_of(root)});
    }
    move(group, local, {0, size}, &exchange);
  };
  const auto deliver = [&](std::size_t k) {
    for (int rank = 0; rank < group.size(); ++rank) {
      if (layout.host_of(rank) == layout.host_of(root)) continue;
      const Block part = piece_of(block(rank), k, reduction.piece_bytes());
      if (at_root) exchange.recv(rank, {destination(operation) + part.offset, part.bytes});
      if (rank != group.rank()) continue;
      sent[k % depth] = exchange.send(root, {reduction.own(k), part.bytes});
    }
    exchange.start();
    if (through_memory) deliver_on_host(k);
  };
  const auto start = [&](std::size_t k) {
    exchange.run_until_sent(root, sent[k % depth]);
    reduction.start(k);
  };
  const auto finish = [&](std::size_t k) {
    reduction.finish(k);
    deliver(k);
  };
  run_pipeline(reduction.pieces(), start, finish);
}

}  // namespace atoll_collectives

// The ring algorithms for N ranks: N - 1 times, every rank passes the data that it received from
// the previous rank on to the next rank.
//
// Data is passed on in pieces, so that the network is busy while a rank adds. Each rank sends and
// receives (N - 1) / N S bytes of a tensor of S bytes. If the ranks of a host are consecutive, each
// host also sends and receives (N - 1) / N S bytes: less than with flat, and more than with
// two_level unless each host has one rank. Each rank receives from one rank and sends to one rank,
// whatever the number of hosts.
#include <algorithm>
#include <array>
#include <utility>

#include "collectives/collectives.hpp"

namespace atoll_collectives {
namespace {

constexpr std::size_t largest_ring_piece = 256 * 1024;

const Block& block_at(const std::vector<Block>& blocks, int rank) {
  const int n = static_cast<int>(blocks.size());
  return blocks[static_cast<std::size_t>((rank % n + n) % n)];
}

// A reduce_scatter that passes partial sums around the ring. The scratch memory has two halves: the
// partial sums of one step are sent from one half while the partial sums of the next step arrive in
// the other half.
class ReduceScatterRing {
 public:
  ReduceScatterRing(Group& group, const std::vector<Block>& blocks, std::byte* out,
                    const atoll_operation& operation, Exchange& exchange)
      : group_(group),
        blocks_(blocks),
        out_(out),
        operation_(operation),
        exchange_(exchange),
        element_(dtype_size(operation.dtype)),
        factor_(operation.factor),
        next_((group.rank() + 1) % group.size()),
        previous_((group.rank() + group.size() - 1) % group.size()) {
    for (const auto& block : blocks) largest_ = std::max(largest_, block.bytes);
    largest_ = round_up_to_line(largest_);
    scratch_ = group.scratch(2 * largest_);
    for (auto& sent : sent_) sent.assign(pieces_of(largest_, largest_ring_piece), 0);
  }

  // The partial sum of block b starts at rank b + 1 and ends, complete, at rank b.
  void run() {
    begin();
    for (int step = 1; step < group_.size(); ++step) {
      const auto& block = block_at(blocks_, group_.rank() - step - 1);
      const std::size_t pieces = pieces_of(block.bytes, largest_ring_piece);
      if (pieces > 0) expect(step, 0);
      for (std::size_t k = 0; k < pieces; ++k) {
        const auto ticket = expected_;
        if (k + 1 < pieces) expect(step, k + 1);
        exchange_.run_until_received(previous_, ticket);
        add(step, k);
      }
    }
  }

 private:
  // Returns the scratch memory that holds piece k of this step's partial sum.
  std::span<std::byte> buffer(int step, std::size_t k, std::size_t bytes) const {
    const std::size_t half = step % 2 == 0 ? 0 : largest_;
    return scratch_.subspan(half + k * largest_ring_piece, bytes);
  }
  Block piece(int step, std::size_t k) const {
    return piece_of(block_at(blocks_, group_.rank() - step - 1), k, largest_ring_piece);
  }
  std::vector<std::uint64_t>& sent(int step) { return sent_[static_cast<std::size_t>(step % 2)]; }

  void begin() {
    const auto& first = block_at(blocks_, group_.rank() - 1);
    for (std::size_t k = 0; k < pieces_of(first.bytes, largest_ring_piece); ++k) {
      const auto range = piece(0, k);
      const auto to = buffer(0, k, range.bytes);
      const void* own = source(operation_) + range.offset;
      void* partial = to.data();
      reduce_arrays(operation_, partial_op(operation_),
                    {.dsts = {&partial, 1},
                     .parts = {&own, 1},
                     .factors = factor_ == 1.0 ? nullptr : &factor_,
                     .count = range.bytes / element_});
      sent(0)[k] = exchange_.send(next_, to);
      exchange_.progress();
    }
  }

  void expect(int step, std::size_t k) {
    exchange_.run_until_sent(next_, sent(step)[k]);
    expected_ = exchange_.recv(previous_, buffer(step, k, piece(step, k).bytes));
  }

  void add(int step, std::size_t k) {
    const bool last = step + 1 == group_.size();
    const auto range = piece(step, k);
    const auto arrived = buffer(step, k, range.bytes);
    const void* parts[] = {arrived.data(), source(operation_) + range.offset};
    const double factors[] = {1.0, factor_};
    void* result = last ? out_ + k * largest_ring_piece : arrived.data();
    reduce_arrays(operation_, last ? operation_.op : partial_op(operation_),
                  {.dsts = {&result, 1},
                   .parts = parts,
                   .factors = factor_ == 1.0 ? nullptr : factors,
                   .count = range.bytes / element_,
                   .divisor = group_.size()});
    if (last) return;
    sent(step)[k] = exchange_.send(next_, arrived);
    exchange_.progress();
  }

  Group& group_;
  const std::vector<Block>& blocks_;
  std::byte* out_;
  const atoll_operation& operation_;
  Exchange& exchange_;
  std::size_t element_;
  double factor_;
  int next_;
  int previous_;
  std::size_t largest_ = 0;
  std::span<std::byte> scratch_;
  // Tickets, as Exchange::send() returned them, of the pieces sent from each half of the scratch
  // memory.
  std::array<std::vector<std::uint64_t>, 2> sent_;
  std::uint64_t expected_ = 0;  // ticket of the last receive that was queued
};

}  // namespace

void ring_all_gather(Group& group, const std::vector<Block>& blocks, std::byte* dst,
                     Exchange& exchange) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  const auto send = [&](const Block& piece) {
    exchange.send(next, {dst + piece.offset, piece.bytes});
  };
  const auto& own = block_at(blocks, group.rank());
  for (std::size_t k = 0; k < pieces_of(own.bytes, largest_ring_piece); ++k)
    send(piece_of(own, k, largest_ring_piece));
  std::vector<std::pair<Block, std::uint64_t>> passed;
  for (int step = 1; step < group.size(); ++step) {
    const auto& block = block_at(blocks, group.rank() - step);
    for (std::size_t k = 0; k < pieces_of(block.bytes, largest_ring_piece); ++k) {
      const auto piece = piece_of(block, k, largest_ring_piece);
      const auto ticket = exchange.recv(previous, {dst + piece.offset, piece.bytes});
      if (step + 1 < group.size()) passed.emplace_back(piece, ticket);
    }
  }
  for (const auto& [piece, ticket] : passed) {
    exchange.run_until_received(previous, ticket);
    send(piece);
  }
}

void ring_reduce_scatter(Group& group, const std::vector<Block>& blocks, std::byte* out,
                         const atoll_operation& operation, Exchange& exchange) {
  ReduceScatterRing(group, blocks, out, operation, exchange).run();
}

}  // namespace atoll_collectives

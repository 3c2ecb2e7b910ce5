// Rings: every rank passes on to the next one what it got from the one before, N - 1 times.
//
// Vocabulary. Piece: what a rank passes on at a time, so that the wire has work while it adds.
// Bytes on the wire. (N - 1) / N S out of and into each rank, and, where the ranks of a host stand
// in a row, each way per host: less than flat, more than two_level, but with one rank per host.
// Each rank has one sender and one receiver, whatever the number of hosts.
#include <algorithm>
#include <array>
#include <utility>

#include "host/collectives.hpp"

namespace atoll_sdk::host {
namespace {

constexpr std::size_t largest_piece = 256 * 1024;

const atoll_sdk::Block& block_at(const std::vector<atoll_sdk::Block>& blocks, int rank) {
  const int n = static_cast<int>(blocks.size());
  return blocks[static_cast<std::size_t>((rank % n + n) % n)];
}

std::size_t pieces_of(std::size_t bytes) { return (bytes + largest_piece - 1) / largest_piece; }

// Piece k of a block, in the tensor.
atoll_sdk::Block piece_of(const atoll_sdk::Block& block, std::size_t k) {
  const std::size_t first = std::min(k * largest_piece, block.bytes);
  return {block.offset + first, std::min(largest_piece, block.bytes - first)};
}

// The sums of a reduce_scatter on their way round: those of one step are sent from one half of the
// scratch memory while those of the next one arrive in the other.
class ReduceScatterRing {
 public:
  ReduceScatterRing(Comm& comm, const std::vector<atoll_sdk::Block>& blocks, std::byte* out,
                    const atoll_operation& operation, atoll_sdk::Exchange& exchange)
      : comm_(comm),
        blocks_(blocks),
        out_(out),
        operation_(operation),
        exchange_(exchange),
        element_(atoll_sdk::dtype_size(operation.dtype)),
        factor_(atoll_sdk::factor_of(operation)),
        next_((comm.rank() + 1) % comm.size()),
        previous_((comm.rank() + comm.size() - 1) % comm.size()) {
    for (const auto& block : blocks) largest_ = std::max(largest_, block.bytes);
    const std::size_t line = atoll_sdk::cache_line;
    largest_ = (largest_ + line - 1) / line * line;
    scratch_ = comm.group().scratch(2 * largest_);
    for (auto& sent : sent_) sent.assign(pieces_of(largest_), 0);
  }

  // Block b starts at rank b + 1, so that it ends at rank b.
  void run() {
    begin();
    for (int step = 1; step < comm_.size(); ++step) {
      const auto& block = block_at(blocks_, comm_.rank() - step - 1);
      const std::size_t pieces = pieces_of(block.bytes);
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
  // In the half of a step.
  std::span<std::byte> place(int step, std::size_t k, std::size_t bytes) const {
    const std::size_t half = step % 2 == 0 ? 0 : largest_;
    return scratch_.subspan(half + k * largest_piece, bytes);
  }
  atoll_sdk::Block piece(int step, std::size_t k) const {
    return piece_of(block_at(blocks_, comm_.rank() - step - 1), k);
  }
  std::vector<std::uint64_t>& sent(int step) { return sent_[static_cast<std::size_t>(step % 2)]; }
  std::int32_t partial_op() const { return operation_.op == ATOLL_AVG ? ATOLL_SUM : operation_.op; }

  void begin() {
    auto part = operation_;
    part.op = partial_op();
    for (std::size_t k = 0; k < pieces_of(block_at(blocks_, comm_.rank() - 1).bytes); ++k) {
      const auto range = piece(0, k);
      const auto to = place(0, k, range.bytes);
      const void* own = source(operation_) + range.offset;
      comm_.reduce(to.data(), {&own, 1}, factor_ == 1.0 ? nullptr : &factor_,
                   range.bytes / element_, part);
      sent(0)[k] = exchange_.send(next_, to);
      exchange_.progress();
    }
  }

  void expect(int step, std::size_t k) {
    exchange_.run_until_sent(next_, sent(step)[k]);
    expected_ = exchange_.recv(previous_, place(step, k, piece(step, k).bytes));
  }

  void add(int step, std::size_t k) {
    const bool last = step + 1 == comm_.size();
    const auto range = piece(step, k);
    const auto arrived = place(step, k, range.bytes);
    const void* parts[] = {arrived.data(), source(operation_) + range.offset};
    const double factors[] = {1.0, factor_};
    void* result = last ? out_ + k * largest_piece : arrived.data();
    comm_.group().reduce({sizeof(atoll_reduction), &result, parts,
                          factor_ == 1.0 ? nullptr : factors, 1, 2, range.bytes / element_,
                          operation_.dtype, last ? operation_.op : partial_op(), comm_.size(), 0});
    if (last) return;
    sent(step)[k] = exchange_.send(next_, arrived);
    exchange_.progress();
  }

  Comm& comm_;
  const std::vector<atoll_sdk::Block>& blocks_;
  std::byte* out_;
  const atoll_operation& operation_;
  atoll_sdk::Exchange& exchange_;
  std::size_t element_;
  double factor_;
  int next_;
  int previous_;
  std::size_t largest_ = 0;
  std::span<std::byte> scratch_;
  std::array<std::vector<std::uint64_t>, 2> sent_;  // by half and piece
  std::uint64_t expected_ = 0;                      // the receive that was asked for last
};

}  // namespace

void ring_all_gather(Comm& comm, const std::vector<atoll_sdk::Block>& blocks, std::byte* dst,
                     atoll_sdk::Exchange& exchange) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const auto send = [&](const atoll_sdk::Block& piece) {
    exchange.send(next, {dst + piece.offset, piece.bytes});
  };
  const auto& own = block_at(blocks, comm.rank());
  for (std::size_t k = 0; k < pieces_of(own.bytes); ++k) send(piece_of(own, k));
  std::vector<std::pair<atoll_sdk::Block, std::uint64_t>> passed;
  for (int step = 1; step < comm.size(); ++step) {
    const auto& block = block_at(blocks, comm.rank() - step);
    for (std::size_t k = 0; k < pieces_of(block.bytes); ++k) {
      const auto piece = piece_of(block, k);
      const auto ticket = exchange.recv(previous, {dst + piece.offset, piece.bytes});
      if (step + 1 < comm.size()) passed.emplace_back(piece, ticket);
    }
  }
  for (const auto& [piece, ticket] : passed) {
    exchange.run_until_received(previous, ticket);
    send(piece);
  }
}

void ring_reduce_scatter(Comm& comm, const std::vector<atoll_sdk::Block>& blocks, std::byte* out,
                         const atoll_operation& operation, atoll_sdk::Exchange& exchange) {
  ReduceScatterRing(comm, blocks, out, operation, exchange).run();
}

}  // namespace atoll_sdk::host

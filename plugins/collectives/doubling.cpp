#include "collectives/doubling.hpp"

#include <bit>

#include "sdk/describe.hpp"

namespace atoll_sdk {
namespace {

// The exchange between the speakers of one place. Vocabulary. Place: number of a host among those
// that exchange, which is a power of two of them.
class Speaker {
 public:
  Speaker(Group& group, const atoll_operation& operation, std::size_t bytes, Exchange& exchange)
      : group_(group),
        operation_(operation),
        bytes_(bytes),
        exchange_(exchange),
        data_(static_cast<std::byte*>(operation.dst)),
        incoming_(group.scratch(bytes)),
        places_(std::bit_floor(static_cast<unsigned>(group.layout.hosts()))),
        host_(static_cast<unsigned>(group.layout.host_of(group.rank()))) {
    paired_ = static_cast<unsigned>(group.layout.hosts()) - places_;
  }

  void run() {
    if (hands_over()) {
      exchange_.send(rank_of(host_ - 1), {data_, bytes_});
      exchange_.run();
      receive(rank_of(host_ - 1), {data_, bytes_});
      return;
    }
    const bool has_pair = host_ < 2 * paired_;
    if (has_pair) {
      receive(rank_of(host_ + 1), incoming_);
      add(Side::right, partial_op());
    }
    const unsigned place = has_pair ? host_ / 2 : host_ - paired_;
    for (unsigned distance = 1; distance < places_; distance *= 2) {
      const unsigned other = place ^ distance;
      exchange_.send(rank_of(host_at(other)), {data_, bytes_});
      receive(rank_of(host_at(other)), incoming_);
      exchange_.run();  // the sends, too: adding overwrites what they read
      const bool last = 2 * distance == places_;
      add(other < place ? Side::left : Side::right, last ? operation_.op : partial_op());
    }
    if (has_pair) exchange_.send(rank_of(host_ + 1), {data_, bytes_});
  }

 private:
  enum class Side {
    left,
    right
  };
  bool hands_over() const { return host_ < 2 * paired_ && host_ % 2 == 1; }
  unsigned host_at(unsigned place) const { return place < paired_ ? 2 * place : place + paired_; }
  int rank_of(unsigned host) const {
    return group_.layout.twin(group_.rank(), static_cast<int>(host));
  }
  std::int32_t partial_op() const { return operation_.op == ATOLL_AVG ? ATOLL_SUM : operation_.op; }

  void receive(int rank, std::span<std::byte> to) {
    exchange_.run_until_received(rank, exchange_.recv(rank, to));
  }

  // `side` of the own data on which what arrived stands in the sum.
  void add(Side side, std::int32_t op) {
    const bool left = side == Side::left;
    const void* parts[] = {left ? incoming_.data() : data_, left ? data_ : incoming_.data()};
    void* dst = data_;
    group_.reduce({sizeof(atoll_reduction), &dst, parts, nullptr, 1, 2,
                   bytes_ / dtype_size(operation_.dtype), operation_.dtype, op, group_.size(), 0});
  }

  Group& group_;
  const atoll_operation& operation_;
  std::size_t bytes_;
  Exchange& exchange_;
  std::byte* data_;
  std::span<std::byte> incoming_;
  unsigned places_;
  unsigned host_;
  unsigned paired_ = 0;  // pairs of hosts of which one hands over
};

}  // namespace

void doubling_all_reduce(Group& group, const atoll_operation& operation, Exchange& exchange) {
  const std::size_t bytes = operation.count * dtype_size(operation.dtype);
  const Extents extents{bytes, bytes};
  constexpr int first = 0;  // local
  const int speakers = bytes <= small_bytes ? group.layout.fewest_ranks() : 1;
  group.slices.push_back(
      {0, bytes, speakers > 1 ? everybody : first, static_cast<std::byte*>(operation.dst)});
  sum(group, operation, extents, {.op = operation.op == ATOLL_AVG ? ATOLL_SUM : operation.op},
      &exchange);
  if (group.board.self() < speakers) Speaker(group, operation, bytes, exchange).run();
  if (group.board.size() == speakers) return;
  group.offers[first].push_back({Offer::From::dst, 0, 0, bytes, everybody});
  move(group, operation, extents, &exchange);
}

}  // namespace atoll_sdk

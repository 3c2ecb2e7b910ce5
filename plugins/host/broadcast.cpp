// broadcast: data of the root on every rank.
//
// Vocabulary. Speaker: the rank through which the data reaches a host; the root on its own. Piece:
// what is passed on at a time, so that links, and the ranks of a host, work at once.
// Steps, one host. Every rank copies the whole out of the root's memory (sdk/move.cpp).
// Steps, several hosts. flat: the root sends the whole to its twin on every other host. chain: each
// speaker sends every piece to its twin on the next host, counted from the root's, as soon as it
// has it. On each host the ranks copy a piece from the speaker while the next ones arrive.
// Bytes between H hosts. S into each but the root's. Out: flat (H - 1) S of the root's, chain S of
// each but the last. Time on links of one rate, large data: flat (H - 1) S, chain S + (H - 2)
// pieces.
// Twins exchange signatures, so that ranks which disagree about the root find out, instead of
// waiting for each other: every rank has one on every other host, and meets those of its own on
// the board.
#include <algorithm>

#include "host/collectives.hpp"

namespace atoll_sdk::host {
namespace {

// Large against what a meeting of the host's ranks costs, small against the whole.
constexpr std::size_t smallest_piece = 64 * 1024;
constexpr std::size_t largest_piece = 1024 * 1024;
constexpr std::size_t pieces_wanted = 16;

// A host's place among those that the data passes.
struct Route {
  int from = -1;        // who sends to this host; -1: it is the root's
  int speaker = 0;      // of this host
  std::vector<int> to;  // whom its speaker sends to
};

Route direct_route(const atoll_sdk::Layout& layout, int root, int here) {
  const int first = layout.host_of(root);
  if (here != first) return {root, layout.twin(root, here), {}};
  Route route{-1, root, {}};
  for (int host = 0; host < layout.hosts(); ++host) {
    if (host != first) route.to.push_back(layout.twin(root, host));
  }
  return route;
}

Route chain_route(const atoll_sdk::Layout& layout, int root, int here) {
  Route route{-1, root, {}};
  const int first = layout.host_of(root);
  for (int step = 1; step < layout.hosts(); ++step) {
    const int host = (first + step) % layout.hosts();
    const int next = layout.twin(route.speaker, host);
    if (layout.host_of(route.speaker) == here) {
      route.to.push_back(next);
      break;
    }
    route.from = route.speaker;
    route.speaker = next;
  }
  return route;
}

class Broadcast {
 public:
  Broadcast(Comm& comm, const atoll_operation& operation, Route route,
            atoll_sdk::Exchange& exchange)
      : comm_(comm),
        operation_(operation),
        route_(std::move(route)),
        exchange_(exchange),
        size_(bytes(operation)),
        speaks_(comm.rank() == route_.speaker) {
    const auto links = static_cast<std::size_t>(comm.group().layout.hosts() - 1);
    const std::size_t wanted =
        size_ / (pieces_wanted * links) / atoll_sdk::cache_line * atoll_sdk::cache_line;
    piece_ = std::clamp(wanted, smallest_piece, largest_piece);
    pieces_ = std::max<std::size_t>((size_ + piece_ - 1) / piece_, 1);
  }

  void run() {
    if (route_.from < 0) {
      // By pieces, so that every host gets its share of the root's time.
      for (std::size_t k = 0; speaks_ && k < pieces_; ++k) pass_on(k, source(operation_));
      exchange_.start();
      return offer(0, size_, atoll_sdk::Offer::From::src);
    }
    std::vector<std::uint64_t> tickets;
    for (std::size_t k = 0; speaks_ && k < pieces_; ++k) {
      tickets.push_back(exchange_.recv(route_.from, {destination(operation_) + at(k), length(k)}));
    }
    exchange_.start();
    for (std::size_t k = 0; k < pieces_; ++k) {
      if (speaks_) {
        exchange_.run_until_received(route_.from, tickets[k]);
        pass_on(k, destination(operation_));
        exchange_.start();
      }
      offer(at(k), length(k), atoll_sdk::Offer::From::dst);
    }
  }

 private:
  std::size_t at(std::size_t k) const { return std::min(k * piece_, size_); }
  std::size_t length(std::size_t k) const { return at(k + 1) - at(k); }

  void pass_on(std::size_t k, const std::byte* data) {
    for (const int rank : route_.to) exchange_.send(rank, {data + at(k), length(k)});
  }

  // A step on the board: the ranks of the host copy a part from the speaker.
  void offer(std::size_t begin, std::size_t length, atoll_sdk::Offer::From from) {
    auto& group = comm_.group();
    group.offers[static_cast<std::size_t>(group.layout.local_of(route_.speaker))].push_back(
        {from, begin, begin, length, atoll_sdk::everybody});
    const bool reads = from == atoll_sdk::Offer::From::src && speaks_;
    atoll_sdk::move(group, operation_, {reads ? size_ : 0, size_}, &exchange_);
  }

  Comm& comm_;
  const atoll_operation& operation_;
  Route route_;
  atoll_sdk::Exchange& exchange_;
  std::size_t size_;
  bool speaks_;
  std::size_t piece_ = 0;
  std::size_t pieces_ = 0;
};

void one_host(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const bool reads = comm.rank() == operation.peer;
  comm.group().offers[static_cast<std::size_t>(operation.peer)].push_back(
      {atoll_sdk::Offer::From::src, 0, 0, size, atoll_sdk::everybody});
  atoll_sdk::move(comm.group(), operation, {reads ? size : 0, size});
}

}  // namespace

void broadcast(Comm& comm, const atoll_operation& operation) {
  const int root = operation.peer;
  auto local = operation;
  if (comm.rank() == root && local.src == nullptr) local.src = local.dst;
  if (comm.rank() == root && local.dst == nullptr) local.dst = const_cast<void*>(local.src);
  if (comm.group().one_host()) return one_host(comm, local);

  const auto& layout = comm.group().layout;
  const int here = layout.host_of(comm.rank());
  const bool chain = comm.tuning().choose(operation, bytes(operation)) == Algorithm::chain;
  atoll_sdk::Exchange exchange(comm.team(), operation);
  greet_twins(comm, exchange);
  Broadcast(comm, local, chain ? chain_route(layout, root, here) : direct_route(layout, root, here),
            exchange)
      .run();
  exchange.run();
}

}  // namespace atoll_sdk::host

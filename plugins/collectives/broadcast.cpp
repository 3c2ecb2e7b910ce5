// broadcast: copies the root's data to every rank.
//
// The leader of a host is the rank that receives the data from another host; on the root's host,
// the leader is the root. Leaders receive the data in pieces and pass each piece on at once, so
// that the network and the ranks of a host are busy at the same time.
//
// On one host every rank copies the data from the root's memory.
//
// Over several hosts:
//   flat: the root sends all data to the leader of every other host.
//   chain: the hosts form a chain that begins at the root's host, and each leader sends every piece
//     to the leader of the next host as soon as the piece has arrived.
// On each host the ranks copy a piece from the leader while the next pieces arrive.
//
// Bytes between H hosts, for S bytes of data: S bytes enter each host except the root's host. With
// flat, (H - 1) S bytes leave the root's host; with chain, S bytes leave each host except the last.
// On equal links, the time for large data is that of sending (H - 1) S bytes with flat, and S bytes
// plus H - 2 pieces with chain.
//
// Counterparts (ranks of different hosts that exchange data in two-level collectives) compare their
// call signatures, and the ranks of a host compare signatures in shared memory. So ranks that
// passed different roots report a mismatch instead of waiting for each other.
#include <algorithm>

#include "collectives/collectives.hpp"

namespace atoll_collectives {
namespace {

// Limits for the size of the pieces in which a tensor is broadcast. A piece must be large enough to
// hide the cost of synchronizing the ranks, and small compared with the whole tensor.
constexpr std::size_t smallest_piece = 64 * 1024;
constexpr std::size_t largest_piece = 1024 * 1024;
constexpr std::size_t pieces_wanted = 16;

// The path of a broadcast through this host. The leader is the rank that receives the data from
// another host; on the root's host, the leader is the root.
struct Route {
  int from = -1;   // rank of another host that sends to this host's leader; -1 on the root's host
  int leader = 0;  // rank that distributes the data on this host; on the root's host, the root
  std::vector<int> to;  // ranks of other hosts to which the leader sends
};

Route direct_route(const Layout& layout, int root, int here) {
  const int first = layout.host_of(root);
  if (here != first) return {root, layout.counterpart(root, here), {}};
  Route route{-1, root, {}};
  for (int host = 0; host < layout.hosts(); ++host) {
    if (host != first) route.to.push_back(layout.counterpart(root, host));
  }
  return route;
}

Route chain_route(const Layout& layout, int root, int here) {
  Route route{-1, root, {}};
  const int first = layout.host_of(root);
  for (int step = 1; step < layout.hosts(); ++step) {
    const int host = (first + step) % layout.hosts();
    const int next = layout.counterpart(route.leader, host);
    if (layout.host_of(route.leader) == here) {
      route.to.push_back(next);
      break;
    }
    route.from = route.leader;
    route.leader = next;
  }
  return route;
}

void pass_along(Group& group, const atoll_operation& operation, const Route& route,
                Exchange& exchange) {
  const std::size_t size = bytes(operation);
  const Block whole{0, size};
  const bool leads = group.rank() == route.leader;
  const auto links = static_cast<std::size_t>(group.layout.hosts() - 1);
  const std::size_t wanted = size / (pieces_wanted * links) / cache_line * cache_line;
  const std::size_t piece = std::clamp(wanted, smallest_piece, largest_piece);
  const std::size_t pieces = std::max<std::size_t>(pieces_of(size, piece), 1);
  const auto send = [&](const Block& part, const std::byte* data) {
    for (const int rank : route.to) exchange.send(rank, {data + part.offset, part.bytes});
  };
  // Lets the other ranks of this host copy `part` from the leader.
  const auto offer = [&](const Block& part, Offer::From from) {
    group.offer(group.layout.local_of(route.leader),
                {from, part.offset, part.offset, part.bytes, everybody});
    const bool reads = from == Offer::From::src && leads;
    move(group, operation, {reads ? size : 0, size}, &exchange);
  };
  if (route.from < 0) {
    // Sends each piece to every host before the next piece, so that all hosts receive at the same
    // rate.
    for (std::size_t k = 0; leads && k < pieces; ++k) {
      send(piece_of(whole, k, piece), source(operation));
    }
    exchange.start();
    return offer(whole, Offer::From::src);
  }
  std::vector<std::uint64_t> tickets;
  for (std::size_t k = 0; leads && k < pieces; ++k) {
    const Block part = piece_of(whole, k, piece);
    tickets.push_back(
        exchange.recv(route.from, {destination(operation) + part.offset, part.bytes}));
  }
  exchange.start();
  for (std::size_t k = 0; k < pieces; ++k) {
    const Block part = piece_of(whole, k, piece);
    if (leads) {
      exchange.run_until_received(route.from, tickets[k]);
      send(part, destination(operation));
      exchange.start();
    }
    offer(part, Offer::From::dst);
  }
}

void broadcast_one_host(Group& group, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const bool reads = group.rank() == operation.peer;
  group.offer(operation.peer, {Offer::From::src, 0, 0, size, everybody});
  move(group, operation, {reads ? size : 0, size});
}

}  // namespace

void broadcast(Group& group, const atoll_operation& operation) {
  const int root = operation.peer;
  auto local = operation;
  if (group.rank() == root && local.src == nullptr) local.src = local.dst;
  if (group.rank() == root && local.dst == nullptr) local.dst = const_cast<void*>(local.src);
  if (group.one_host()) return broadcast_one_host(group, local);

  const auto& layout = group.layout;
  const int here = layout.host_of(group.rank());
  const bool chain = group.tuning.choose(operation, bytes(operation)) == Algorithm::chain;
  Exchange exchange(group.team, operation);
  for (const int rank : layout.counterparts(group.rank())) exchange.compare_with(rank);
  pass_along(group, local,
             chain ? chain_route(layout, root, here) : direct_route(layout, root, here), exchange);
  exchange.run();
}

}  // namespace atoll_collectives

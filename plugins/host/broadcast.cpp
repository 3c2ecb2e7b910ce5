// broadcast: data of the root on every rank.
//
// Steps, one host. Every rank copies the whole out of the root's memory (sdk/move.cpp).
// Steps, several hosts. The root sends the whole to its twin on every other host; on each host the
// ranks copy it from there. The root exchanges signatures with every other rank, both ways, so that
// ranks which disagree about it find out, instead of waiting for each other.
// Bytes on the wire. (H - 1) S out of the root's host, S into each other one.
#include "host/collectives.hpp"

namespace atoll_sdk::host {

void broadcast(Comm& comm, const atoll_operation& operation) {
  const std::size_t size = bytes(operation);
  const int root = operation.peer;
  auto& group = comm.group();
  const auto& layout = group.layout;
  const int host = layout.host_of(comm.rank());
  const bool from_src = host == layout.host_of(root);
  const int speaker = from_src ? root : layout.twin(root, host);
  auto local = operation;
  if (comm.rank() == root && local.src == nullptr) local.src = local.dst;
  if (comm.rank() == root && local.dst == nullptr) local.dst = const_cast<void*>(local.src);

  atoll_sdk::Exchange exchange(comm.team(), operation);
  if (!group.one_host()) {
    if (comm.rank() == root) {
      exchange.greet_all();
      for (int other = 0; other < layout.hosts(); ++other) {
        if (other != host) exchange.send(layout.twin(root, other), {source(local), size});
      }
    } else {
      exchange.greet(root);
      if (comm.rank() == speaker) exchange.recv(root, {destination(local), size});
    }
    exchange.start();
    if (comm.rank() != root) exchange.run();
  }
  const auto from = from_src ? atoll_sdk::Offer::From::src : atoll_sdk::Offer::From::dst;
  group.offers[static_cast<std::size_t>(layout.local_of(speaker))].push_back(
      {from, 0, 0, size, atoll_sdk::everybody});
  const bool reads = comm.rank() == root;
  atoll_sdk::move(group, local, {reads ? size : 0, size}, group.one_host() ? nullptr : &exchange);
  exchange.run();
}

}  // namespace atoll_sdk::host

#include "host/tcp_transport.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "sdk/backend.hpp"

namespace atoll_host_backend {
namespace {

using namespace std::chrono_literals;
using atoll_collectives::Direction;
using atoll_collectives::Need;
using atoll_sdk::Error;

constexpr auto farewell_limit = 2s;  // maximum time that finish() waits for acknowledgments
constexpr auto look_period = 1s;     // time between two checks for a cut network
// Time between two lookups of a rank that has not published its ports yet. It doubles up to
// longest_pause, because each lookup is a request to the job's store, and many ranks may look up
// the same rank. Once the ports are known, lookups only show whether the rank has closed before it
// is connected: they follow every longest_pause.
constexpr auto lookup_pause = 20ms;
constexpr auto longest_pause = 500ms;
constexpr auto closed_limit = 1s;  // time for the connections of a closed rank to arrive

}  // namespace

TcpTransport::TcpTransport(std::unique_ptr<Rendezvous> rendezvous, Lookup lookup, Options options)
    : rendezvous_(std::move(rendezvous)),
      lookup_(std::move(lookup)),
      options_(std::move(options)),
      peers_(static_cast<std::size_t>(rendezvous_->network().size())) {}

// Returns true once the rank is connected. Takes connections before it looks the rank up in the
// store: a rank that has closed may have connected and sent data before.
bool TcpTransport::connect(int rank, Peer& peer) {
  Streams streams = rendezvous_->take(rank);
  if (streams.empty()) {
    const auto now = Clock::now();
    if (now >= peer.next_lookup) look_up(rank, peer, now);
    return false;
  }
  peer.watches.resize(streams.size());
  peer.link = make_link(std::move(streams), options_.checksum);
  return true;
}

// Starts to connect with a rank. Throws Error(ATOLL_PEER_LOST) if the rank has closed the
// communicator, but only after closed_limit, so that connections that it made before can arrive.
void TcpTransport::look_up(int rank, Peer& peer, Clock::time_point now) {
  Contact contact;
  try {
    contact = lookup_(rank);
  } catch (const Error&) {
    // A failed lookup does no harm once the rendezvous was asked to connect with the rank.
    if (!peer.wanted) throw;
  }
  peer.pause = std::clamp<std::chrono::milliseconds>(2 * peer.pause, lookup_pause, longest_pause);
  peer.next_lookup = now + peer.pause;
  if (contact.is_closed) {
    if (peer.closed_since == Clock::time_point{}) peer.closed_since = now;
    if (now - peer.closed_since >= closed_limit)
      throw Error(ATOLL_PEER_LOST, "it has closed the communicator");
    return;
  }
  const std::size_t rails = rendezvous_->network().common_rails(rank);
  if (!contact.ports.empty() && contact.ports.size() < rails) {
    throw Error(ATOLL_BAD_DATA, fmt::format("that rank published {} ports for {} rails",
                                            contact.ports.size(), rails));
  }
  if (!contact.ports.empty() && !peer.wanted) {
    peer.wanted = true;
    rendezvous_->want(rank, contact.ports);
  }
  if (peer.wanted) peer.next_lookup = now + longest_pause;
}

template <class Move>
std::size_t TcpTransport::move(int rank, Direction direction, const Move& body) {
  Peer& peer = at(rank);
  if (!peer.link && !connect(rank, peer)) return 0;
  if (!peer.cut.empty()) throw Error(ATOLL_PEER_LOST, peer.cut);
  try {
    const std::size_t n = body(*peer.link);
    peer.moved += n;
    return n;
  } catch (const Error& error) {
    const Link& link = *peer.link;
    const std::size_t used = direction == Direction::send ? link.out() : link.in();
    throw Error(error.status(),
                fmt::format("connection between {}: {}", link.streams()[used].ends, error.what()));
  }
}

std::size_t TcpTransport::send(int peer, std::span<const std::byte> data) {
  return send_both(peer, {}, data);
}

std::size_t TcpTransport::send_both(int peer, std::span<const std::byte> head,
                                    std::span<const std::byte> data) {
  return move(peer, Direction::send, [&](Link& link) { return link.send(head, data); });
}

std::size_t TcpTransport::recv(int peer, std::span<std::byte> data) {
  return move(peer, Direction::recv, [&](Link& link) { return link.recv(data); });
}

TcpTransport::Armed TcpTransport::arm(std::uint32_t /*ticket*/, std::span<const Need> needs,
                                      std::vector<pollfd>& descriptors) {
  look(needs);
  bool connecting = false;
  for (const auto& need : needs) {
    const Peer& peer = at(need.peer);
    if (!peer.link) {
      connecting = true;
    } else if (need.direction == Direction::send) {
      descriptors.push_back({peer.link->socket(peer.link->out()), POLLOUT, 0});
    } else {
      descriptors.push_back({peer.link->socket(peer.link->in()), POLLIN, 0});
    }
  }
  if (!connecting) return Armed::sleep;
  // If a connection has arrived since connect() checked, the caller must not sleep.
  pollfd news{rendezvous_->news(), POLLIN, 0};
  if (::poll(&news, 1, 0) > 0) {
    rendezvous_->calm();
    // An eventfd is always writable, so the caller's poll() returns at once.
    descriptors.push_back({rendezvous_->news(), POLLOUT, 0});
  } else {
    descriptors.push_back(news);
  }
  return Armed::sleep;
}

void TcpTransport::look(std::span<const Need> needs) {
  const auto now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + look_period;
  for (const auto& need : needs) {
    Peer& peer = at(need.peer);
    if (peer.link) look_at(peer, now);
  }
}

// Checks whether the network to a peer has been cut. If so, stores the text of the error, which the
// next send() or recv() throws, because their caller can name the operation.
void TcpTransport::look_at(Peer& peer, Clock::time_point now) {
  if (std::exchange(peer.seen, peer.moved) != peer.moved) return;
  for (std::size_t i = 0; i < peer.watches.size(); ++i) {
    Health health;
    if (!read_health(peer.link->socket(i), health)) continue;
    if (!peer.watches[i].look(health, now, options_.cut)) continue;
    peer.cut = fmt::format(
        "connection between {}: the other host has answered nothing for {:.0f} s, not even {} "
        "retransmissions or probes: it is down, or the network between both hosts is cut",
        peer.link->streams()[i].ends, std::chrono::duration<double>(health.silent).count(),
        health.unanswered);
  }
}

std::string TcpTransport::obstacle(int peer) {
  return at(peer).link ? std::string() : rendezvous_->reason(peer);
}

// Waits until the peers' kernels have acknowledged all data. The kernel would deliver the data even
// after close(), but not if this process runs in a container and the container's network disappears
// after the process has ended.
void TcpTransport::finish() noexcept {
  for (const Peer& peer : peers_) {
    if (!peer.link) continue;
    for (const auto& connection : peer.link->streams()) {
      ::shutdown(connection.socket.get(), SHUT_WR);
    }
  }
  const auto end = Clock::now() + farewell_limit;
  for (const Peer& peer : peers_) {
    if (!peer.link) continue;
    for (const auto& connection : peer.link->streams()) {
      while (unacknowledged(connection.socket.get()) > 0 && Clock::now() < end) {
        std::this_thread::sleep_for(200us);
      }
    }
  }
}

}  // namespace atoll_host_backend

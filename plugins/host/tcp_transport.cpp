#include "host/tcp_transport.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <thread>

#include "sdk/guard.hpp"

namespace atoll_host_backend {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t stripe_bytes = 64 * 1024;
// Connections take turns, but a connection is skipped if its queue is longer than another
// connection's queue by more than this many bytes.
constexpr std::size_t lead = 4 * stripe_bytes;
constexpr auto farewell_limit = 2s;  // maximum time that finish() waits for acknowledgments

// Converts the result of a socket call to the number of bytes moved; 0 if the call would block.
// Throws Error(ATOLL_PEER_LOST) for other errors.
std::size_t moved(ssize_t n) {
  if (n >= 0) return static_cast<std::size_t>(n);
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS) return 0;
  throw atoll_sdk::Error(ATOLL_PEER_LOST, std::generic_category().message(error));
}

// Returns the number of sent bytes that the peer's kernel has not acknowledged yet.
std::size_t unsent(int socket) {
  int bytes = 0;
  return ::ioctl(socket, SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

}  // namespace

TcpTransport::TcpTransport(std::map<int, Streams> connections) {
  for (auto& [rank, streams] : connections) {
    peers_.emplace(rank, Peer{std::move(streams), {0, stripe_bytes}, {0, stripe_bytes}});
  }
}

// Returns the connection for the next stripe (part of the byte stream to a peer): the next
// connection in turn, unless another connection has a much shorter queue. Taking turns keeps equal
// rails balanced; reacting to small differences costs more time than it saves.
std::uint8_t TcpTransport::choose(const Peer& peer) {
  const std::size_t count = peer.streams.size();
  std::size_t best = 0;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (std::size_t step = 1; step <= count; ++step) {
    const std::size_t stream = (peer.out.stream + step) % count;
    const std::size_t queued = unsent(peer.streams[stream].get()) + (step == 1 ? 0 : lead);
    if (queued >= least) continue;
    least = queued;
    best = stream;
  }
  return static_cast<std::uint8_t>(best);
}

std::size_t TcpTransport::send(int peer, std::span<const std::byte> data) {
  Peer& to = peers_.at(peer);
  const bool several = to.streams.size() > 1;
  for (;;) {
    const std::size_t n = std::min(data.size(), to.out.left);
    const bool ends = several && n == to.out.left;
    std::uint8_t next = ends ? choose(to) : 0;
    // The const_cast is safe, because sendmsg() does not write to the buffer.
    iovec parts[2] = {{const_cast<std::byte*>(data.data()), n}, {&next, sizeof(next)}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = ends ? 2 : 1;
    const std::size_t done =
        moved(::sendmsg(to.streams[to.out.stream].get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL));
    if (several)
      to.out = done > n ? Turn{next, stripe_bytes} : Turn{to.out.stream, to.out.left - done};
    if (n > 0 || done == 0) return std::min(done, n);
  }
}

std::size_t TcpTransport::recv(int peer, std::span<std::byte> data) {
  Peer& from = peers_.at(peer);
  const bool several = from.streams.size() > 1;
  for (;;) {
    const std::size_t n = std::min(data.size(), from.in.left);
    const bool ends = several && n == from.in.left;
    std::uint8_t next = 0;
    iovec parts[2] = {{data.data(), n}, {&next, sizeof(next)}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = ends ? 2 : 1;
    const ssize_t got = ::recvmsg(from.streams[from.in.stream].get(), &message, MSG_DONTWAIT);
    if (got == 0 && (n > 0 || ends)) {
      throw atoll_sdk::Error(ATOLL_PEER_LOST, "the peer has closed the connection");
    }
    const std::size_t done = moved(got);
    if (done > n && next >= from.streams.size()) {
      throw atoll_sdk::Error(ATOLL_INTERNAL,
                             "the peer's data is out of sync between its connections");
    }
    if (several)
      from.in = done > n ? Turn{next, stripe_bytes} : Turn{from.in.stream, from.in.left - done};
    if (n > 0 || done == 0) return std::min(done, n);
  }
}

void TcpTransport::wait(std::uint32_t ticket, std::span<const atoll_collectives::Need> needs,
                        std::chrono::nanoseconds limit) {
  descriptors_.clear();
  arm(ticket, needs, descriptors_);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{static_cast<time_t>(seconds.count()),
                      static_cast<long>((limit - seconds).count())};
  ::ppoll(descriptors_.data(), descriptors_.size(), &time, nullptr);
}

TcpTransport::Armed TcpTransport::arm(std::uint32_t /*ticket*/,
                                      std::span<const atoll_collectives::Need> needs,
                                      std::vector<pollfd>& descriptors) {
  for (const auto& need : needs) {
    const Peer& peer = peers_.at(need.peer);
    if (need.direction == atoll_collectives::Direction::send) {
      descriptors.push_back({peer.streams[peer.out.stream].get(), POLLOUT, 0});
    } else {
      descriptors.push_back({peer.streams[peer.in.stream].get(), POLLIN, 0});
    }
  }
  return Armed::sleep;
}

// Waits until the peers' kernels have acknowledged all data. The kernel would deliver the data even
// after close(), but not if this process runs in a container and the container's network disappears
// after the process has ended.
void TcpTransport::finish() noexcept {
  for (const auto& [rank, peer] : peers_) {
    for (const auto& connection : peer.streams) ::shutdown(connection.get(), SHUT_WR);
  }
  const auto end = std::chrono::steady_clock::now() + farewell_limit;
  for (const auto& [rank, peer] : peers_) {
    for (const auto& connection : peer.streams) {
      while (unsent(connection.get()) > 0 && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(200us);
      }
    }
  }
}

}  // namespace atoll_host_backend

#include "host/tcp_transport.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "sdk/guard.hpp"

namespace atoll_sdk::host {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t stripe_bytes = 256 * 1024;
constexpr auto farewell_limit = 2s;

// The number of bytes moved, 0 for "not now".
std::size_t moved(ssize_t n) {
  if (n >= 0) return static_cast<std::size_t>(n);
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS) return 0;
  throw atoll_sdk::Error(ATOLL_PEER_LOST, std::generic_category().message(error));
}

}  // namespace

TcpTransport::TcpTransport(std::map<int, Streams> connections) {
  for (auto& [rank, streams] : connections) peers_[rank].streams = std::move(streams);
}

int TcpTransport::next(const Peer& peer, std::uint64_t position) {
  return peer.streams[position / stripe_bytes % peer.streams.size()].get();
}

std::size_t TcpTransport::send(int peer, std::span<const std::byte> data) {
  Peer& to = peers_.at(peer);
  const std::size_t n = std::min(data.size(), stripe_bytes - to.sent % stripe_bytes);
  const std::size_t done =
      moved(::send(next(to, to.sent), data.data(), n, MSG_DONTWAIT | MSG_NOSIGNAL));
  to.sent += done;
  return done;
}

std::size_t TcpTransport::recv(int peer, std::span<std::byte> data) {
  Peer& from = peers_.at(peer);
  const std::size_t n = std::min(data.size(), stripe_bytes - from.received % stripe_bytes);
  const ssize_t got = ::recv(next(from, from.received), data.data(), n, MSG_DONTWAIT);
  if (got == 0 && n > 0) throw atoll_sdk::Error(ATOLL_PEER_LOST, "it has closed the connection");
  const std::size_t done = moved(got);
  from.received += done;
  return done;
}

void TcpTransport::wait(std::uint32_t ticket, std::span<const atoll_sdk::Need> needs,
                        std::chrono::nanoseconds limit) {
  descriptors_.clear();
  arm(ticket, needs, descriptors_);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{static_cast<time_t>(seconds.count()),
                      static_cast<long>((limit - seconds).count())};
  ::ppoll(descriptors_.data(), descriptors_.size(), &time, nullptr);
}

TcpTransport::Armed TcpTransport::arm(std::uint32_t /*ticket*/,
                                      std::span<const atoll_sdk::Need> needs,
                                      std::vector<pollfd>& descriptors) {
  for (const auto& need : needs) {
    const Peer& peer = peers_.at(need.peer);
    if (need.direction == atoll_sdk::Direction::send) {
      descriptors.push_back({next(peer, peer.sent), POLLOUT, 0});
    } else {
      descriptors.push_back({next(peer, peer.received), POLLIN, 0});
    }
  }
  return Armed::sleep;
}

// The kernel goes on delivering after close(), but not after the end of a container's network, so
// an orderly end waits until the peers' kernels have everything.
void TcpTransport::finish() noexcept {
  for (const auto& [rank, peer] : peers_) {
    for (const auto& connection : peer.streams) ::shutdown(connection.get(), SHUT_WR);
  }
  const auto end = std::chrono::steady_clock::now() + farewell_limit;
  for (const auto& [rank, peer] : peers_) {
    for (const auto& connection : peer.streams) {
      int queued = 0;
      while (::ioctl(connection.get(), SIOCOUTQ, &queued) == 0 && queued > 0 &&
             std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(200us);
      }
    }
  }
}

}  // namespace atoll_sdk::host

// TcpTransport connects ranks of different hosts. Each pair of ranks has one or several TCP
// connections, over one or several rails.
//
// With several connections, the byte stream to a rank is cut into stripes. One byte after each
// stripe names the connection that carries the next stripe, so the receiver always knows on which
// connection its next byte arrives. Connections take turns, but a connection with a much longer
// queue than another is skipped, so that faster or less busy rails carry more data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "collectives/transport.hpp"
#include "host/tcp_rendezvous.hpp"

namespace atoll_host_backend {

class TcpTransport final : public atoll_collectives::Transport {
 public:
  // `connections` holds the sockets for each peer rank, at most 255 per rank. They must be
  // authenticated and non-blocking.
  explicit TcpTransport(std::map<int, Streams> connections);

  std::size_t send(int peer, std::span<const std::byte> data) override;
  std::size_t recv(int peer, std::span<std::byte> data) override;
  bool can_spin() const noexcept override { return false; }
  std::uint32_t ticket() const noexcept override { return 0; }
  bool changed(std::uint32_t /*ticket*/) const noexcept override { return false; }
  void wait(std::uint32_t ticket, std::span<const atoll_collectives::Need> needs,
            std::chrono::nanoseconds limit) override;
  Armed arm(std::uint32_t ticket, std::span<const atoll_collectives::Need> needs,
            std::vector<pollfd>& descriptors) override;
  void disarm() noexcept override {}
  void wake() noexcept override {}  // not needed, because wait() always ends within its time limit
  void finish() noexcept override;

 private:
  // State of one direction of a byte stream, which is cut into stripes: the connection in use, and
  // the number of bytes left in the current stripe. If that number is 0, the next byte on the
  // connection names the connection that carries the next stripe.
  struct Turn {
    std::size_t stream = 0;
    std::size_t left = 0;
  };
  struct Peer {
    Streams streams;
    Turn out;
    Turn in;
  };
  static std::uint8_t choose(const Peer& peer);

  std::map<int, Peer> peers_;
  std::vector<pollfd> descriptors_;
};

}  // namespace atoll_host_backend

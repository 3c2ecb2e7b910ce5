// The transport between ranks of different hosts: one or several TCP connections per pair of ranks,
// over one or several rails.
//
// With several connections the byte stream to a rank is cut into stripes. One byte after each
// stripe names the connection that carries the next stripe. Connections take turns, but a
// connection with a much longer queue than another is skipped, so that a faster or less busy rail
// carries more. The receiver always knows which connection its next byte comes from.
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
  // `connections` are indexed by rank, authenticated and non-blocking; at most 255 per rank.
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
  void wake() noexcept override {}  // waits are bounded by their limit
  void finish() noexcept override;

 private:
  // State of one direction: the connection in use and the bytes left in its stripe. 0 means that the
  // byte that names the next connection follows.
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

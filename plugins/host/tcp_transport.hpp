// Channels between ranks of different hosts: one or several TCP connections per pair, over one or
// several rails.
//
// With several, what a rank sends is cut into stripes. After each stripe one byte names the
// connection that carries the next: they take turns, but one that has much more left to deliver
// than another is passed over, so that a fast rail, or one that nobody else uses, carries more. The
// receiver follows, and always knows the one connection that its next byte comes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "host/tcp_rendezvous.hpp"
#include "collectives/transport.hpp"

namespace atoll_sdk::host {

class TcpTransport final : public atoll_sdk::Transport {
 public:
  // By rank of the group; connected, authenticated, non-blocking. At most 255 per rank.
  explicit TcpTransport(std::map<int, Streams> connections);

  std::size_t send(int peer, std::span<const std::byte> data) override;
  std::size_t recv(int peer, std::span<std::byte> data) override;
  bool can_spin() const noexcept override { return false; }
  std::uint32_t ticket() const noexcept override { return 0; }
  bool changed(std::uint32_t /*ticket*/) const noexcept override { return false; }
  void wait(std::uint32_t ticket, std::span<const atoll_sdk::Need> needs,
            std::chrono::nanoseconds limit) override;
  Armed arm(std::uint32_t ticket, std::span<const atoll_sdk::Need> needs,
            std::vector<pollfd>& descriptors) override;
  void disarm() noexcept override {}
  void wake() noexcept override {}  // waits are short
  void finish() noexcept override;

 private:
  // Of one direction: the connection in use, and the bytes up to the end of its stripe; 0: the byte
  // that names the next connection.
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

}  // namespace atoll_sdk::host

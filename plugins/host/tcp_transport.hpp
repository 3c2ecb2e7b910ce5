// Channels between ranks of different hosts: one or several TCP connections per pair. With several,
// the stream is cut into stripes that take turns on them, so that the network and the kernel work on
// as many at the same time.
#pragma once

#include <map>
#include <vector>

#include "host/tcp_rendezvous.hpp"
#include "sdk/transport.hpp"

namespace atoll_sdk::host {

class TcpTransport final : public atoll_sdk::Transport {
 public:
  // By rank of the group; connected, authenticated, non-blocking.
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
  // Bytes so far say which connection is next, and how much of its stripe is left.
  struct Peer {
    Streams streams;
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };
  static int next(const Peer& peer, std::uint64_t position);

  std::map<int, Peer> peers_;
  std::vector<pollfd> descriptors_;
};

}  // namespace atoll_sdk::host

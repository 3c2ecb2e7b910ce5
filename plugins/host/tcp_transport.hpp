// Channels between ranks of different hosts: one TCP connection per pair.
#pragma once

#include <map>
#include <vector>

#include "sdk/descriptor.hpp"
#include "sdk/transport.hpp"

namespace atoll_sdk::host {

class TcpTransport final : public atoll_sdk::Transport {
 public:
  // By rank of the group; connected, authenticated, non-blocking.
  explicit TcpTransport(std::map<int, atoll_sdk::Descriptor> connections);

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
  int socket(int peer) const { return connections_.at(peer).get(); }

  std::map<int, atoll_sdk::Descriptor> connections_;
  std::vector<pollfd> descriptors_;
};

}  // namespace atoll_sdk::host

// TcpTransport connects ranks of different hosts. The connections with a rank are made when the
// first byte moves between the two ranks (tcp_rendezvous.hpp); tcp_link.hpp has the format of the
// bytes. While this rank waits and no byte moves, it checks once per second whether the network is
// cut (tcp_cut.hpp).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/transport.hpp"
#include "host/tcp_cut.hpp"
#include "host/tcp_link.hpp"
#include "host/tcp_rendezvous.hpp"

namespace atoll_host_backend {

class TcpTransport final : public atoll_collectives::Transport {
 public:
  using Clock = std::chrono::steady_clock;
  // The facts about a rank that the other ranks find in the store.
  struct Contact {
    std::vector<std::uint16_t> ports;  // listening ports, one per rail; empty while unknown
    bool is_closed = false;            // true if the rank has closed the communicator
  };
  using Lookup = std::function<Contact(int)>;

  struct Options {
    Checksum checksum = Checksum::none;
    std::chrono::nanoseconds cut{};  // time without any answer after which a network counts as cut
    // Lets ranks that are not connected yet know that this rank has closed.
    std::function<void()> retract = [] {};
  };

  TcpTransport(std::unique_ptr<Rendezvous> rendezvous, Lookup lookup, Options options);
  ~TcpTransport() override { options_.retract(); }

  std::size_t send(int peer, std::span<const std::byte> data) override;
  std::size_t send_both(int peer, std::span<const std::byte> head,
                        std::span<const std::byte> data) override;
  std::size_t recv(int peer, std::span<std::byte> data) override;
  bool can_spin() const noexcept override { return false; }
  std::uint32_t ticket() const noexcept override { return 0; }
  bool changed(std::uint32_t /*ticket*/) const noexcept override { return false; }
  Armed arm(std::uint32_t ticket, std::span<const atoll_collectives::Need> needs,
            std::vector<pollfd>& descriptors) override;
  void finish() noexcept override;
  std::string obstacle(int peer) override;

 private:
  struct Peer {
    std::unique_ptr<Link> link;  // null until the rank is connected
    bool wanted = false;         // true if the rendezvous was asked to connect with the rank
    Clock::time_point next_lookup{};
    std::chrono::milliseconds pause{};  // time between two lookups
    // Time at which a lookup first found the rank closed; 0: the rank is not known to be closed.
    Clock::time_point closed_since{};
    std::uint64_t moved = 0;        // bytes moved in both directions
    std::uint64_t seen = 0;         // value of `moved` at the last check for a cut
    std::vector<CutWatch> watches;  // detectors of a cut, one per connection
    std::string cut;                // text of the error if the network is cut, otherwise empty
  };
  Peer& at(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  bool connect(int rank, Peer& peer);
  void look_up(int rank, Peer& peer, Clock::time_point now);
  void look(std::span<const atoll_collectives::Need> needs);
  void look_at(Peer& peer, Clock::time_point now);
  template <class Move>
  std::size_t move(int rank, atoll_collectives::Direction direction, const Move& body);

  std::unique_ptr<Rendezvous> rendezvous_;
  Lookup lookup_;
  Options options_;
  std::vector<Peer> peers_;
  Clock::time_point next_look_{};
};

}  // namespace atoll_host_backend

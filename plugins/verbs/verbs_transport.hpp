// VerbsTransport connects ranks of different hosts by RDMA (stream.hpp has the protocol). Two ranks
// connect when the first byte moves between them. They exchange their addresses through one key of
// the job's store: the higher rank publishes its address; the lower rank reads it, makes its queue
// pairs ready to receive, and replaces it by its own; then the higher rank can send, and empties
// the key. Its first write shows the lower rank that it can send too.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/communicator/group_store.hpp"
#include "collectives/transport.hpp"
#include "verbs/connection.hpp"
#include "verbs/memory.hpp"
#include "verbs/settings.hpp"
#include "verbs/stream.hpp"

namespace atoll_verbs_backend {

// Access to the job's store: each pair of ranks shares one key, which holds one text.
struct Exchange {
  std::function<void(int peer, const std::string& contact)> publish;
  // Returns the text that `peer` has published for this rank, or "" if there is none yet. Throws
  // Error if the job has failed.
  std::function<std::string(int peer)> look_up;
  // Deletes the text.
  std::function<void(int peer)> forget;
};

// What a transport must know of its communicator.
struct Membership {
  int rank = 0, ranks = 0;
  int remote_ranks = 0;                // number of ranks on other hosts; limits memory per rank
  std::chrono::nanoseconds timeout{};  // time limit of finish(); 0: none
  std::function<void(int peer, const std::string& text)> warn;
};

class VerbsTransport final : public atoll_collectives::Transport {
 public:
  using Clock = std::chrono::steady_clock;

  VerbsTransport(Settings settings, Exchange exchange, Membership membership);

  std::string description() const;  // describes the adapters in use

  std::size_t send(int peer, std::span<const std::byte> data) override;
  std::size_t recv(int peer, std::span<std::byte> data) override;
  void expect(int peer, std::span<std::byte> memory) override;
  bool can_spin() const noexcept override { return true; }
  std::uint32_t ticket() const noexcept override { return state_->events; }
  bool changed(std::uint32_t ticket) const noexcept override;
  Armed arm(std::uint32_t ticket, std::span<const atoll_collectives::Need> needs,
            std::vector<pollfd>& descriptors) override;
  void disarm() noexcept override;
  void finish() noexcept override;
  void add_memory(std::span<std::byte> memory) override { ranges_.add(hcas_, memory); }
  void remove_memory(const std::byte* memory) override { ranges_.remove(memory); }
  void stop() noexcept override;
  std::string obstacle(int peer) override;

 private:
  enum class Stage {
    idle,
    looking,  // waits for the address of the other rank
    open,
  };
  struct Peer {
    explicit Peer(Stream::Find find) : stream(std::move(find)) {}
    Stage stage = Stage::idle;
    std::unique_ptr<Connection> connection;
    Stream stream;
    Clock::time_point next_look_up{};
    std::chrono::milliseconds pause{};
    Clock::time_point last_event{};
    std::string failure;
    bool has_parted = false;  // true once this rank has told the peer that it sends no more
    Clock::time_point parting_end = Clock::time_point::max();
  };
  // The state that poll() changes. It is a separate object, because changed() is const and polls.
  struct State {
    std::uint32_t events = 0;
    std::string failure;  // why a port has failed, which concerns all peers; else empty
    // The peer and the queue index of each queue pair, by rail and by the queue pair's number.
    std::vector<std::unordered_map<std::uint32_t, std::pair<Peer*, std::size_t>>> owners;
  };

  Peer& at(int rank);
  bool connect(int rank, Peer& peer);
  void create(Peer& peer);
  bool look_up(int rank, Peer& peer);
  void poll() const noexcept;
  int poll_rail(std::size_t rail) const noexcept;
  void handle(std::size_t rail, const ibv_wc& completion) const;
  void fail(Peer& peer, std::size_t rail, const ibv_wc& completion) const;
  void check(const Peer& peer) const;
  bool is_used(std::size_t rail) const;
  void look(std::span<const atoll_collectives::Need> needs);
  bool part(Peer& peer);
  std::vector<int> undelivered();

  Settings settings_;
  Exchange exchange_;
  Membership membership_;
  std::size_t ring_bytes_, credits_ = 0;
  Hcas hcas_;
  std::vector<Rail> rails_;
  Ranges ranges_;
  std::vector<std::unique_ptr<Peer>> peers_;  // state of each peer; null until a byte is to move
  std::unique_ptr<State> state_;
  Clock::time_point next_look_{};
};

}  // namespace atoll_verbs_backend

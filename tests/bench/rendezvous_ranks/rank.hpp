// A rank that the bench of the rendezvous plays: one connection to the store that sends what a rank
// sends and reads what a rank reads.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "core/socket.hpp"
#include "store/protocol.hpp"

namespace rendezvous_bench {

namespace net = atoll::net;
namespace store = atoll::store;

// Token of the job, and the number of keys that each rank reads.
inline const std::string token = "0123456789abcdef0123456789abcdef";
inline constexpr int keys_read = 32;

enum class Phase {
  lost,
  connecting,
  challenged,
  proving,
  joining,
  placing,
  counting,  // exchanges the pids
  putting,
  agreeing,
  fetching,
  leaving,
  done,
};

// One simulated rank: its connection, and its phase in the protocol of the store.
class Rank {
 public:
  Rank(int number, int size, int per_host) : number_(number), size_(size), per_host_(per_host) {}

  int socket() const { return socket_.get(); }
  Phase phase() const { return phase_; }
  std::size_t bytes() const { return bytes_; }
  bool is_done() const { return phase_ == Phase::done; }

  void connect(const net::Address& to, int client);
  // Reads what has arrived, and sends the next messages. Throws if the store does not answer as it
  // must.
  void advance(bool is_plain);

 private:
  void send(store::Kind kind, const std::string& body);
  void exchange(std::string_view key, std::string_view value);
  void handle(const std::string& body);
  void fetch_keys();
  std::string host_text(int rank) const;
  void check_placement(std::string_view payload) const;

  int number_;
  int size_;
  int per_host_;
  net::Fd socket_;
  Phase phase_ = Phase::connecting;
  std::unique_ptr<store::Handshake> handshake_;
  std::string input_;
  std::size_t bytes_ = 0;
};

}  // namespace rendezvous_bench

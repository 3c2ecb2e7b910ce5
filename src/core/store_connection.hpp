// One accepted connection of the store's server: a nonblocking socket with what has arrived of the
// next frame and what has still to leave.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "core/socket.hpp"
#include "core/store_protocol.hpp"

namespace atoll_v1::atoll::store {

class Connection {
 public:
  explicit Connection(net::Fd socket) : socket_(std::move(socket)) {}

  int socket() const noexcept { return socket_.get(); }
  bool is_open() const noexcept { return static_cast<bool>(socket_); }
  void close() noexcept { socket_.reset(); }
  net::Clock::time_point opened() const noexcept { return opened_; }

  // The rank behind it, once its hello was accepted; -1 before.
  int rank() const noexcept { return rank_; }
  void authenticate(int rank) noexcept { rank_ = rank; }

  // Reads what is there, up to a bounded amount. False: the peer has closed it.
  bool receive();
  // Takes one complete frame out of what was read. Throws Error(bad_data) for one that is longer
  // than a peer in this state may send.
  struct Frame {
    std::uint32_t kind = 0;
    std::uint64_t request = 0;
    std::string body;
  };
  bool next(Frame& frame);

  // Every frame of the store has the form of an answer. Bodies are shared: an exchange sends the
  // same bytes to every rank.
  void queue(Kind kind, std::uint64_t request, std::optional<ErrorCode> problem,
             std::shared_ptr<const std::string> body);
  bool has_output() const noexcept { return !output_.empty(); }
  bool send();  // what the socket takes now; false: the peer has closed it

 private:
  net::Fd socket_;
  net::Clock::time_point opened_ = net::Clock::now();
  int rank_ = -1;
  std::string input_;
  std::deque<std::shared_ptr<const std::string>> output_;
  std::size_t sent_ = 0;  // of output_.front()
};

}  // namespace atoll_v1::atoll::store

// One accepted connection of the store's server: a nonblocking socket, the received part of the next
// frame, and the output that is not yet sent.
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

  // Rank of the peer; -1 until its hello is accepted.
  int rank() const noexcept { return rank_; }
  void authenticate(int rank) noexcept { rank_ = rank; }

  // Reads available data, up to a limit; returns false if the peer has closed the connection.
  bool receive();
  // Extracts one complete frame from the received data, if there is one. Throws Error(bad_data) if the
  // frame is longer than a peer in this state may send.
  struct Frame {
    std::uint32_t kind = 0;
    std::uint64_t request = 0;
    std::string body;
  };
  bool next(Frame& frame);

  // Queues a frame; all frames of the store have the format of an answer. Bodies are shared, because
  // an exchange sends the same bytes to every rank.
  void queue(Kind kind, std::uint64_t request, std::optional<ErrorCode> problem,
             std::shared_ptr<const std::string> body);
  bool has_output() const noexcept { return !output_.empty(); }
  bool send();  // sends what the socket accepts; false if the peer closed it

 private:
  net::Fd socket_;
  net::Clock::time_point opened_ = net::Clock::now();
  int rank_ = -1;
  std::string input_;
  std::deque<std::shared_ptr<const std::string>> output_;
  std::size_t sent_ = 0;  // bytes of output_.front() already sent
};

}  // namespace atoll_v1::atoll::store

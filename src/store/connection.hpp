// One accepted connection of the server: a nonblocking socket in an epoll set, the received part of
// the next message, and the output that is not yet sent.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "atoll/error.hpp"
#include "core/socket.hpp"
#include "store/protocol.hpp"

namespace atoll_v1::atoll::store {

struct Epoch;

struct Frame {
  std::uint32_t kind = 0;
  std::uint64_t request = 0;
  std::string body;
};

class Connection {
 public:
  enum class Stage {
    silent,      // the peer has sent no hello
    challenged,  // the peer must send its proof
    proven,      // the peer knows the token, but has not joined as a rank
    waiting,     // the peer has asked for a place in the next epoch
    joined,
    observing,  // the peer is an observer, not a rank
  };

  // Adds the socket to `epoll`, whose events then carry `id`.
  Connection(net::Fd socket, int epoll, std::uint64_t id);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(); }

  std::uint64_t id() const noexcept { return id_; }
  bool is_open() const noexcept { return static_cast<bool>(socket_); }
  void close() noexcept;
  net::Clock::time_point opened() const noexcept { return opened_; }
  // When the peer gave the last sign of life.
  net::Clock::time_point heard() const noexcept { return heard_; }
  void hear() noexcept { heard_ = net::Clock::now(); }
  std::string peer_name() const;  // address of the peer, for messages

  Stage stage() const noexcept { return stage_; }
  bool is_proven() const noexcept { return stage_ >= Stage::proven; }
  bool is_waiting() const noexcept { return stage_ == Stage::waiting; }
  bool is_observer() const noexcept { return stage_ == Stage::observing; }
  int rank() const noexcept { return rank_; }       // -1 until the peer has joined
  Epoch* epoch() const noexcept { return epoch_; }  // epoch that the peer has joined; null before
  // Answers a hello with a challenge.
  void challenge(std::string_view hello, std::string_view token);
  const Greeting& greeting() const noexcept { return handshake_->peer(); }
  // Checks the peer's proof and answers it with the proof of the store. Returns false if the peer
  // does not know the token.
  bool prove(std::string_view proof);
  void join(Epoch& epoch, int rank, std::chrono::seconds cut_timeout) noexcept;
  void wait(std::chrono::seconds cut_timeout) noexcept;
  void observe() noexcept;

  // Reads available data, up to a limit; returns false if the peer has closed the connection.
  bool receive();
  // Extracts one complete message from the received data, if there is one. Throws Error(bad_data)
  // if the message is longer than a peer in this stage may send.
  bool next(Frame& frame);

  // Sends a message; all messages of the store have the format of an answer. Bytes that the socket
  // does not accept at once wait for flush(). Bodies are shared, because an exchange sends the same
  // bytes to every rank.
  void send(Kind kind, std::uint64_t request, std::optional<ErrorCode> problem,
            std::shared_ptr<const std::string> body);
  bool has_output() const noexcept { return !output_.empty(); }
  // Sends what the socket accepts. If the connection has ended, drops the output; the messages that
  // the peer sent before can still be received.
  void flush();

 private:
  struct Part {
    std::string header;  // header of the frame, and status of the answer
    std::shared_ptr<const std::string> body;
    std::size_t size() const noexcept { return header.size() + body->size(); }
  };

  bool send_front();
  void watch();  // asks epoll for the events that this connection needs
  std::size_t largest_message() const noexcept;

  net::Fd socket_;
  int epoll_;
  std::uint64_t id_;
  net::Clock::time_point opened_ = net::Clock::now();
  net::Clock::time_point heard_ = opened_;
  Stage stage_ = Stage::silent;
  int rank_ = -1;
  Epoch* epoch_ = nullptr;
  bool is_watching_output_ = false;
  std::unique_ptr<Handshake> handshake_;
  std::string input_;
  std::deque<Part> output_;
  std::size_t sent_ = 0;  // bytes of output_.front() that are already sent
};

}  // namespace atoll_v1::atoll::store

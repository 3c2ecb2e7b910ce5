#include "store/observer.hpp"

#include <algorithm>
#include <utility>

#include "store/client.hpp"

namespace atoll_v1::atoll::store {
namespace {

using net::Clock;

// The store answers when `patience` is over, at the latest. The observer waits this much longer, so
// that the answer can arrive.
constexpr std::chrono::seconds answer_grace{5};

// Longest wait that an observer may ask for; the store itself limits it further.
constexpr std::chrono::milliseconds longest_wait{60'000};

// Connects to the first address that accepts, and throws the last error otherwise.
net::Fd connect_to_any(const std::vector<net::Address>& addresses, Clock::time_point deadline) {
  for (std::size_t i = 0;; ++i) {
    try {
      return net::connect_to(addresses.at(i), deadline);
    } catch (const Error&) {
      if (i + 1 == addresses.size()) throw;
    }
  }
}

}  // namespace

Observer::Observer(std::vector<net::Address> addresses, std::string token,
                   Clock::time_point deadline)
    : addresses_(std::move(addresses)), token_(std::move(token)) {
  connect(deadline);
}

void Observer::connect(Clock::time_point deadline) {
  socket_ = connect_to_any(addresses_, deadline);
  net::configure_stream(socket_.get());
  try {
    shake_hands(socket_.get(), token_, deadline);
    net::send_all(socket_.get(), encode_frame(Kind::observe, 0, ""), deadline);
    receive(Kind::welcome, deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    throw Error(ErrorCode::bad_data,
                "the process at this address closed the connection; it is no store that accepts "
                "observers");
  }
}

std::optional<std::vector<Answered>> Observer::look(std::chrono::milliseconds patience) try {
  patience = std::clamp(patience, std::chrono::milliseconds(0), longest_wait);
  const Clock::time_point deadline = Clock::now() + patience + answer_grace;
  if (!socket_) connect(deadline);
  const std::string body = Packer().number(static_cast<std::uint32_t>(patience.count())).take();
  try {
    net::send_all(socket_.get(), encode_frame(Kind::observe, 1, body), deadline);
  } catch (const Error&) {
    // The connection has ended. receive() below reads the last message of the store, which has the
    // reason.
  }
  const std::string answer = receive(Kind::answer, deadline);
  if (has_ended_) return std::nullopt;
  return decode_answers(answer);
} catch (const Error&) {
  // A late answer, or the rest of one, must not be taken for the answer to the next question.
  socket_.reset();
  throw;
}

std::string Observer::receive(Kind kind, Clock::time_point deadline) {
  while (!has_ended_) {
    Message message;
    try {
      message = receive_message(socket_.get(), max_answer_bytes, deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
      throw Error(ErrorCode::timeout,
                  "rank 0, which serves the store, does not answer (its process is stopped, or its "
                  "host is unreachable)");
    }
    const Answer answer = decode_answer(message.body);
    if (answer.problem) {
      // An observer throws `aborted` for each failure of the job, because `timeout` means that the
      // store has not answered the observer.
      throw Error(message.kind == Kind::failure ? ErrorCode::aborted : *answer.problem,
                  std::string(answer.payload));
    }
    has_ended_ = message.kind == Kind::ended;
    if (message.kind == kind) return std::string(answer.payload);
  }
  return {};
}

}  // namespace atoll_v1::atoll::store

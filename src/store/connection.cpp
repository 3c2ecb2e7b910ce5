#include "store/connection.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "core/errors.hpp"

namespace atoll_v1::atoll::store {

Connection::Connection(net::Fd socket, int epoll, std::uint64_t id)
    : socket_(std::move(socket)), epoll_(epoll), id_(id) {
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.u64 = id_;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, socket_.get(), &wanted) != 0) socket_.reset();
}

// A process that this one has forked may hold a copy of the socket, so closing alone would neither
// end the connection nor remove it from the epoll set.
void Connection::close() noexcept {
  if (!socket_) return;
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket_.get(), nullptr);
  if (is_proven()) ::shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
}

std::string Connection::peer_name() const {
  try {
    return net::name_of(net::peer_address(socket_.get()));
  } catch (const Error&) {
    return "a process that has gone";
  }
}

void Connection::challenge(std::string_view hello, std::string_view token) {
  handshake_ = std::make_unique<Handshake>(Side::store, token);
  handshake_->hear(hello);
  stage_ = Stage::challenged;
  send(Kind::challenge, 0, std::nullopt,
       std::make_shared<const std::string>(handshake_->greeting()));
}

bool Connection::prove(std::string_view proof) {
  if (!handshake_->accepts(proof)) return false;
  stage_ = Stage::proven;
  net::configure_stream(socket_.get());
  send(Kind::proved, 0, std::nullopt, std::make_shared<const std::string>(handshake_->proof()));
  return true;
}

void Connection::wait(std::chrono::seconds cut_timeout) noexcept {
  net::notice_cut(socket_.get(), cut_timeout);
  stage_ = Stage::waiting;
  handshake_.reset();
}

void Connection::join(Epoch& epoch, int rank, std::chrono::seconds cut_timeout) noexcept {
  net::notice_cut(socket_.get(), cut_timeout);
  hear();
  epoch_ = &epoch;
  rank_ = rank;
  stage_ = Stage::joined;
  handshake_.reset();
}

void Connection::observe() noexcept {
  stage_ = Stage::observing;
  handshake_.reset();
}

bool Connection::receive() {
  std::array<char, 64 * 1024> chunk;
  const std::size_t most = is_proven() ? chunk.size() : header_bytes + max_unproven_bytes;
  const ssize_t received = ::recv(socket_.get(), chunk.data(), most, 0);
  if (received < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (received == 0) return false;
  input_.append(chunk.data(), static_cast<std::size_t>(received));
  hear();
  return true;
}

std::size_t Connection::largest_message() const noexcept {
  if (stage_ == Stage::joined) return max_request_bytes;
  return stage_ == Stage::proven ? max_join_bytes : max_unproven_bytes;
}

bool Connection::next(Frame& frame) {
  if (input_.size() < header_bytes) return false;
  const Header header = decode_header(input_);
  require(header.length <= largest_message(), ErrorCode::bad_data,
          "store message of {} bytes; at most {} are allowed", header.length, largest_message());
  const std::size_t total = header_bytes + header.length;
  if (input_.size() < total) return false;
  frame.kind = header.kind;
  frame.request = header.request;
  frame.body.assign(input_, header_bytes, header.length);
  input_.erase(0, total);
  if (input_.empty()) input_.shrink_to_fit();
  return true;
}

void Connection::send(Kind kind, std::uint64_t request, std::optional<ErrorCode> problem,
                      std::shared_ptr<const std::string> body) {
  const std::string status =
      Packer().number(problem ? static_cast<std::uint32_t>(*problem) : 0).take();
  const auto length = static_cast<std::uint32_t>(status.size() + body->size());
  output_.push_back({encode_header({length, static_cast<std::uint32_t>(kind), request}) + status,
                     std::move(body)});
  // Earlier output already waits for the socket. If the connection has closed, the server notices
  // it when it next serves the connection.
  if (output_.size() == 1) flush();
}

bool Connection::send_front() {
  const Part& front = output_.front();
  std::array<iovec, 2> parts{};
  std::size_t count = 0, skip = sent_;
  for (const std::string* piece : {&front.header, front.body.get()}) {
    if (skip < piece->size()) {
      parts[count++] = {const_cast<char*>(piece->data() + skip), piece->size() - skip};
      skip = 0;
    } else {
      skip -= piece->size();
    }
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  if (sent < 0) return false;
  sent_ += static_cast<std::size_t>(sent);
  return true;
}

// Progress on output that had to wait counts as a sign of life: it shows that the peer reads.
void Connection::flush() {
  const bool has_waited = is_watching_output_;
  while (!output_.empty()) {
    if (!send_front()) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      ::shutdown(socket_.get(), SHUT_RDWR);  // receive() then reads the rest and reports the end
      output_.clear();
      sent_ = 0;
      break;
    }
    if (has_waited) hear();
    if (sent_ < output_.front().size()) continue;
    output_.pop_front();
    sent_ = 0;
  }
  watch();
}

void Connection::watch() {
  if (!socket_ || has_output() == is_watching_output_) return;
  is_watching_output_ = has_output();
  epoll_event wanted{};
  wanted.events = is_watching_output_ ? EPOLLIN | EPOLLOUT : EPOLLIN;
  wanted.data.u64 = id_;
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, socket_.get(), &wanted);
}

}  // namespace atoll_v1::atoll::store

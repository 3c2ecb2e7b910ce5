#include "core/store_connection.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

namespace atoll_v1::atoll::store {

bool Connection::receive() {
  std::array<char, 64 * 1024> chunk;
  const ssize_t received = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
  if (received < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (received == 0) return false;
  input_.append(chunk.data(), static_cast<std::size_t>(received));
  return true;
}

bool Connection::next(Frame& frame) {
  if (input_.size() < header_bytes) return false;
  const Header header = decode_header(input_);
  const std::size_t most = rank_ < 0 ? max_hello_bytes : max_request_bytes;
  if (header.length > most) {
    throw Error(
        ErrorCode::bad_data,
        fmt::format("store message of {} bytes; at most {} are allowed", header.length, most));
  }
  const std::size_t total = header_bytes + header.length;
  if (input_.size() < total) return false;
  frame.kind = header.kind;
  frame.request = header.request;
  frame.body.assign(input_, header_bytes, header.length);
  input_.erase(0, total);
  return true;
}

void Connection::queue(Kind kind, std::uint64_t request, std::optional<ErrorCode> problem,
                       std::shared_ptr<const std::string> body) {
  const std::string status = Packer().number(answer_status(problem)).take();
  const auto length = static_cast<std::uint32_t>(status.size() + body->size());
  output_.push_back(std::make_shared<const std::string>(
      encode_header({length, static_cast<std::uint32_t>(kind), request}) + status));
  if (!body->empty()) output_.push_back(std::move(body));
}

bool Connection::send() {
  while (!output_.empty()) {
    const std::string& front = *output_.front();
    const ssize_t sent =
        ::send(socket_.get(), front.data() + sent_, front.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    sent_ += static_cast<std::size_t>(sent);
    if (sent_ == front.size()) {
      output_.pop_front();
      sent_ = 0;
    }
  }
  return true;
}

}  // namespace atoll_v1::atoll::store

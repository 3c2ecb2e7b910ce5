#include "host/tcp_link.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include "host/tcp_checksum.hpp"
#include "sdk/backend.hpp"

namespace atoll_host_backend {
namespace {

using atoll_sdk::Error;

// Connections take turns, but a connection is skipped if its queue is longer than another
// connection's queue by more than this many bytes.
constexpr std::size_t lead = 4 * stripe_bytes;
// Frames from this size on are received in the caller's memory. Smaller ones are not, because the
// caller may move the memory of a signature between two calls.
constexpr std::size_t smallest_in_place = 4096;

// Converts the result of a socket call to the number of bytes moved; 0 if the call would block.
// Throws Error(ATOLL_PEER_LOST) for other errors.
std::size_t moved(ssize_t n) {
  if (n >= 0) return static_cast<std::size_t>(n);
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS) return 0;
  if (error == ETIMEDOUT) {
    throw Error(ATOLL_PEER_LOST,
                "the other host does not answer: it is down, or the network is cut");
  }
  throw Error(ATOLL_PEER_LOST, std::generic_category().message(error));
}

[[noreturn]] void closed() { throw Error(ATOLL_PEER_LOST, "the peer has closed the connection"); }

[[noreturn]] void out_of_sync() {
  throw Error(ATOLL_INTERNAL, "the peer's data is out of sync between its connections");
}

[[noreturn]] void corrupted() {
  throw Error(ATOLL_BAD_DATA,
              "data was corrupted on its way (CRC-32C): check the memory and the network adapters "
              "of both hosts");
}

std::size_t send_parts(int socket, iovec* parts, std::size_t count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return moved(::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

}  // namespace

std::size_t unacknowledged(int socket) noexcept {
  int bytes = 0;
  return ::ioctl(socket, SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

// Taking turns keeps equal rails balanced; reacting to small differences costs more time than it
// saves.
std::uint8_t Link::choose() const {
  const std::size_t count = streams_.size();
  std::size_t best = 0;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (std::size_t step = 1; step <= count; ++step) {
    const std::size_t stream = (out_ + step) % count;
    const std::size_t queued = unacknowledged(socket(stream)) + (step == 1 ? 0 : lead);
    if (queued >= least) continue;
    least = queued;
    best = stream;
  }
  return static_cast<std::uint8_t>(best);
}

std::size_t StripedLink::send(std::span<const std::byte> head, std::span<const std::byte> data) {
  const bool several = streams_.size() > 1;
  for (;;) {
    const std::size_t first = std::min(head.size(), out_left_);
    const std::size_t n = first + std::min(data.size(), out_left_ - first);
    const bool ends = several && n == out_left_;
    std::uint8_t next = ends ? choose() : 0;
    // The const_casts are safe, because sendmsg() does not write to the buffers.
    iovec parts[3] = {{const_cast<std::byte*>(head.data()), first},
                      {const_cast<std::byte*>(data.data()), n - first},
                      {&next, sizeof(next)}};
    const std::size_t done = send_parts(socket(out_), parts, ends ? 3 : 2);
    if (several) {
      out_left_ = done > n ? stripe_bytes : out_left_ - done;
      if (done > n) out_ = next;
    }
    if (n > 0 || done == 0) return std::min(done, n);
  }
}

std::size_t StripedLink::recv(std::span<std::byte> data) {
  const bool several = streams_.size() > 1;
  for (;;) {
    const std::size_t n = std::min(data.size(), in_left_);
    const bool ends = several && n == in_left_;
    std::uint8_t next = 0;
    iovec parts[2] = {{data.data(), n}, {&next, sizeof(next)}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = ends ? 2 : 1;
    const ssize_t got = ::recvmsg(socket(in_), &message, MSG_DONTWAIT);
    if (got == 0 && (n > 0 || ends)) closed();
    const std::size_t done = moved(got);
    if (done > n && next >= streams_.size()) out_of_sync();
    if (several) {
      in_left_ = done > n ? stripe_bytes : in_left_ - done;
      if (done > n) in_ = next;
    }
    if (n > 0 || done == 0) return std::min(done, n);
  }
}

std::uint32_t CheckedLink::sum_of(const Header& header) noexcept {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_sum)));
}

// Begins a frame with the first bytes of `data`. Another connection is chosen only after a whole
// stripe, because looking at the queues of all connections costs too much for small messages.
void CheckedLink::begin(std::span<const std::byte> data) {
  const std::size_t bytes = std::min(data.size(), turn_left_);
  const bool ends = bytes == turn_left_;
  out_header_.bytes = static_cast<std::uint32_t>(bytes);
  out_header_.next = ends && streams_.size() > 1 ? choose() : static_cast<std::uint32_t>(out_);
  out_header_.payload_sum = crc32c(data.first(bytes));
  out_header_.header_sum = sum_of(out_header_);
  turn_left_ = ends ? stripe_bytes : turn_left_ - bytes;
  out_sent_ = 0;
  out_open_ = true;
}

std::size_t CheckedLink::send(std::span<const std::byte> head, std::span<const std::byte> data) {
  const std::size_t n = send_frame(head);
  return n < head.size() ? n : n + send_frame(data);
}

// A frame that was accepted in part continues with the next call, whose data begins where the
// accepted part ended.
std::size_t CheckedLink::send_frame(std::span<const std::byte> data) {
  if (data.empty()) return 0;
  if (!out_open_) begin(data);
  const std::size_t header_sent = std::min(out_sent_, sizeof(Header));
  const std::size_t payload_left = out_header_.bytes - (out_sent_ - header_sent);
  const std::size_t n = std::min(data.size(), payload_left);
  iovec parts[2] = {
      {reinterpret_cast<std::byte*>(&out_header_) + header_sent, sizeof(Header) - header_sent},
      {const_cast<std::byte*>(data.data()), n}};
  const std::size_t done = send_parts(socket(out_), parts, 2);
  const std::size_t header_now = std::min(done, sizeof(Header) - header_sent);
  out_sent_ += done;
  if (out_sent_ == sizeof(Header) + out_header_.bytes) {
    out_open_ = false;
    out_ = out_header_.next;
  }
  return done - header_now;
}

// Continues to read `bytes` bytes to `to`; `have` have arrived so far. Returns true when all have.
bool CheckedLink::receive(std::byte* to, std::size_t bytes, std::size_t& have) {
  const ssize_t got = ::recv(socket(in_), to + have, bytes - have, MSG_DONTWAIT);
  if (got == 0) closed();
  have += moved(got);
  return have == bytes;
}

std::size_t CheckedLink::recv(std::span<std::byte> data) {
  if (data.empty()) return 0;
  if (taken_ == ready_) {
    if (in_header_have_ < sizeof(Header)) {
      if (!receive(reinterpret_cast<std::byte*>(&in_header_), sizeof(Header), in_header_have_)) {
        return 0;
      }
      if (in_header_.header_sum != sum_of(in_header_) || in_header_.bytes == 0 ||
          in_header_.bytes > stripe_bytes) {
        corrupted();
      }
      if (in_header_.next >= streams_.size()) out_of_sync();
      in_have_ = 0;
      const bool fits = in_header_.bytes >= smallest_in_place && data.size() >= in_header_.bytes;
      in_place_ = fits ? data.data() : nullptr;
      if (in_place_ == nullptr) frame_.resize(stripe_bytes);
    }
    std::byte* const to = in_place_ != nullptr ? in_place_ : frame_.data();
    const std::size_t bytes = in_header_.bytes;
    if (!receive(to, bytes, in_have_)) return 0;
    if (crc32c({to, bytes}) != in_header_.payload_sum) corrupted();
    in_header_have_ = 0;
    in_ = in_header_.next;
    if (in_place_ != nullptr) return bytes;
    ready_ = bytes;
    taken_ = 0;
  }
  const std::size_t n = std::min(data.size(), ready_ - taken_);
  std::memcpy(data.data(), frame_.data() + taken_, n);
  taken_ += n;
  return n;
}

std::unique_ptr<Link> make_link(Streams streams, Checksum checksum) {
  switch (checksum) {
    case Checksum::none:
      return std::make_unique<StripedLink>(std::move(streams));
    case Checksum::crc32c:
      return std::make_unique<CheckedLink>(std::move(streams));
  }
  throw Error(ATOLL_INVALID_ARGUMENT, "the group asks for an unknown checksum");
}

}  // namespace atoll_host_backend

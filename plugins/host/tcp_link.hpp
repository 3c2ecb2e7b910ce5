// A Link is the byte stream between two ranks of different hosts, over one or several connections.
//
// StripedLink: with several connections, the byte stream is cut into stripes. One byte after each
// stripe names the connection that carries the next stripe, so the receiver always knows on which
// connection its next byte arrives. Connections take turns, but a connection with a much longer
// queue than another is skipped, so that faster or less busy rails carry more data.
//
// CheckedLink: the byte stream is cut into frames with checksums. The receiver hands out only bytes
// of frames with the right checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "host/tcp_rendezvous.hpp"

namespace atoll_host_backend {

constexpr std::size_t stripe_bytes = 64 * 1024;

class Link {
 public:
  explicit Link(Streams streams) : streams_(std::move(streams)) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Move as many bytes as possible without blocking and return their number, as in Transport.
  std::size_t send(std::span<const std::byte> data) { return send({}, data); }
  virtual std::size_t send(std::span<const std::byte> head, std::span<const std::byte> data) = 0;
  virtual std::size_t recv(std::span<std::byte> data) = 0;

  // The connection that carries the next byte in each direction.
  std::size_t out() const noexcept { return out_; }
  std::size_t in() const noexcept { return in_; }
  const Streams& streams() const noexcept { return streams_; }
  int socket(std::size_t stream) const noexcept { return streams_[stream].socket.get(); }

 protected:
  // Returns the connection for the next stripe: the next connection in turn, unless another
  // connection has a much shorter queue.
  std::uint8_t choose() const;

  Streams streams_;
  std::size_t out_ = 0;
  std::size_t in_ = 0;
};

class StripedLink final : public Link {
 public:
  explicit StripedLink(Streams streams) : Link(std::move(streams)) {}
  using Link::send;
  std::size_t send(std::span<const std::byte> head, std::span<const std::byte> data) override;
  std::size_t recv(std::span<std::byte> data) override;

 private:
  // Bytes left in the current stripe. If 0, the next byte on the connection names the connection
  // that carries the next stripe.
  std::size_t out_left_ = stripe_bytes;
  std::size_t in_left_ = stripe_bytes;
};

class CheckedLink final : public Link {
 public:
  explicit CheckedLink(Streams streams) : Link(std::move(streams)) {}
  using Link::send;
  // The receiver hands out no byte of a frame before its last one, so `head` has its own frame.
  std::size_t send(std::span<const std::byte> head, std::span<const std::byte> data) override;
  std::size_t recv(std::span<std::byte> data) override;

 private:
  struct Header {
    std::uint32_t bytes = 0;  // bytes of the payload that follows, from 1 to stripe_bytes
    std::uint32_t next = 0;   // connection that carries the next frame
    std::uint32_t payload_sum = 0;
    std::uint32_t header_sum = 0;  // checksum of the fields above
  };
  static std::uint32_t sum_of(const Header& header) noexcept;
  std::size_t send_frame(std::span<const std::byte> data);
  void begin(std::span<const std::byte> data);
  bool receive(std::byte* to, std::size_t bytes, std::size_t& have);

  // The frame that is being sent. Its payload is in the caller's memory.
  Header out_header_;
  std::size_t out_sent_ = 0;  // bytes of header and payload sent so far
  bool out_open_ = false;
  std::size_t turn_left_ = stripe_bytes;  // bytes to send before the next connection takes its turn

  // The frame that is being received: into the caller's memory if it fits, or else into frame_.
  Header in_header_;
  std::size_t in_header_have_ = 0;
  std::size_t in_have_ = 0;        // bytes of the payload received so far
  std::byte* in_place_ = nullptr;  // caller's memory for the payload; null if frame_ is used
  std::vector<std::byte> frame_;
  std::size_t ready_ = 0;  // number of checked bytes in frame_
  std::size_t taken_ = 0;  // number of these bytes that recv() has returned
};

enum class Checksum : std::int32_t {
  none = 0,
  crc32c = 1,
};

std::unique_ptr<Link> make_link(Streams streams, Checksum checksum);

// Returns the number of sent bytes that the peer's kernel has not acknowledged yet.
std::size_t unacknowledged(int socket) noexcept;

}  // namespace atoll_host_backend

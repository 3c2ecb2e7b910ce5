// The handshake of a connection between ranks of different hosts, without the sockets. Both sides
// prove that they know the job's token, and neither sends it.
//
// Messages when the connecting rank C connects to the listening rank L:
//   C -> L  hello, then HMAC(token, "hello", hello)
//   L -> C  answer, then HMAC(token, "answer", hello, answer)
//   C -> L  HMAC(token, "confirm", hello, answer)
// Hello and answer hold 32 random bytes each, so a recorded handshake proves nothing. The hello
// comes first, so a process without the token receives no byte, and L needs to keep a connection
// only until the first packet arrives.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/auth.hpp"

namespace atoll_host_backend {

using atoll_collectives::Digest;

constexpr std::size_t most_rails = 64;

enum class Purpose : std::int32_t {
  connect,  // the connection becomes a stream between the two ranks
  call,     // the listening rank is asked to connect back; this connection then closes
};

// Host name as the messages hold it: truncated, and filled up with zeros.
using HostName = std::array<char, 64>;
HostName packed_name(std::string_view name);
// Returns the text of a name that has arrived. Control characters become '?'.
std::string text_of(const HostName& name);

struct Hello {
  std::uint32_t magic;
  std::uint32_t version;
  std::int32_t from;
  std::int32_t to;
  std::int32_t stream;
  std::int32_t purpose;
  std::int32_t checksum;  // nonzero if the rank sends data with checksums
  std::uint32_t nports;   // number of valid entries of `ports`; 0 for Purpose::connect
  Digest group;           // SHA-256 of the group's id
  Digest nonce;
  HostName host;
  std::array<std::uint16_t, most_rails> ports;  // ports on which a caller listens (Purpose::call)
};
static_assert(sizeof(Hello) == 288);

struct Answer {
  Digest nonce;
  HostName host;
  std::int32_t checksum;
};
static_assert(sizeof(Answer) == 100);

template <class Body>
struct Signed {
  Body body{};
  Digest proof{};
};
static_assert(sizeof(Signed<Hello>) == sizeof(Hello) + sizeof(Digest));
static_assert(sizeof(Signed<Answer>) == sizeof(Answer) + sizeof(Digest));

// The identity that a rank proves in a handshake.
struct Identity {
  std::string token;
  std::string group;  // id of the group that this rank opens
  int rank = 0;
  std::string host;
  std::int32_t checksum = 0;
};

// A message that arrives in parts.
template <class Message>
struct Arrival {
  Message message{};
  std::size_t have = 0;

  std::span<std::uint8_t> rest() {
    return std::span(reinterpret_cast<std::uint8_t*>(&message), sizeof(Message)).subspan(have);
  }
  bool complete() const { return have == sizeof(Message); }
};

// Makes and checks the handshake messages of one rank of one group.
class Handshake {
 public:
  explicit Handshake(Identity identity);

  // Messages of the connecting rank.
  Signed<Hello> hello(int to, int stream, Purpose purpose,
                      std::span<const std::uint16_t> ports) const;
  Signed<Hello> sign(const Hello& hello) const;
  bool proves(const Hello& hello, const Signed<Answer>& answer) const;
  Digest confirmation(const Hello& hello, const Answer& answer) const;

  // Messages of the listening rank. accepts() returns true if the sender knows the token, and the
  // hello is meant for this rank, comes from another rank and is well formed.
  bool accepts(const Signed<Hello>& hello) const;
  Signed<Answer> answer(const Hello& hello) const;
  bool confirms(const Hello& hello, const Answer& answer, const Digest& confirmation) const;

  const Identity& identity() const { return identity_; }

 private:
  Digest proof(std::string_view role, const Hello& hello, const Answer* answer) const;

  Identity identity_;
  Digest group_;
};

}  // namespace atoll_host_backend

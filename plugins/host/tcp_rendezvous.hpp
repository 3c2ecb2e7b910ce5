// Rendezvous connects ranks of different hosts over TCP. The lower rank of each pair listens, and
// the higher rank connects. Both prove that they know the job's token before they trust each other.
//
// Messages of the handshake when the connecting rank C connects to the listening rank L:
//   L -> C  challenge: 32 random bytes
//   C -> L  hello: version, both ranks, the number of the stream, SHA-256 of the group's id, 32
//           random bytes; then HMAC(token, "connect", challenge, hello)
//   L -> C  HMAC(token, "accept", challenge, hello)
// A process that does not know the token receives only random bytes before its connection is
// closed. The listener serves many incoming connections at once, each for a bounded time, so that a
// peer that sends nothing does not block the others.
//
// A rail is one of a host's networks. A rank listens once per rail, and each stream between two
// ranks uses one rail. A rail that cannot be reached is an error, even if other rails work.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collectives/auth.hpp"
#include "collectives/descriptor.hpp"

namespace atoll_host_backend {

using atoll_collectives::Descriptor;
using atoll_collectives::Digest;

struct Hello {
  std::uint32_t magic;
  std::uint32_t version;
  std::int32_t from;
  std::int32_t to;
  std::int32_t stream;
  std::int32_t reserved;
  Digest group;
  Digest nonce;
};
static_assert(sizeof(Hello) == 88);

// The identity that this rank proves in a handshake.
struct Identity {
  std::string token;
  std::string group;  // id of the group that this rank opens
  int rank;
};

// The connections with one rank, indexed by stream number.
using Streams = std::vector<Descriptor>;

// Identifies a connection by the rank of the peer and the number of the stream.
using StreamId = std::pair<int, int>;

// The source and destination addresses of a connection to a listening rank.
struct Endpoint {
  std::string from;  // source address on this host; "" lets the kernel choose
  std::string address;
  std::uint16_t port = 0;
};

class Rendezvous {
 public:
  using Clock = std::chrono::steady_clock;

  // Listens on each of `addresses`, one per rail. If an address cannot be bound, listens on all
  // addresses of this host instead.
  Rendezvous(Identity identity, std::vector<std::string> addresses);

  std::vector<std::uint16_t> ports() const;          // listening port of each rail
  void expect(StreamId stream, std::size_t rail);    // announces a connection from a higher rank
  void connect_to(StreamId stream, Endpoint where);  // announces a connection to a lower rank

  // Establishes all streams that were announced with expect() and connect_to(), and returns them by
  // peer rank. Calls `check` about four times per second; an exception from `check` ends the
  // rendezvous. At the deadline, throws Error(ATOLL_TIMEOUT) with the missing ranks, which
  // `describe` formats.
  std::map<int, Streams> run(Clock::time_point deadline, const std::function<void()>& check,
                             const std::function<std::string(int)>& describe);

 private:
  struct Incoming {  // accepted connection of a peer that has not proved its identity yet
    Descriptor socket;
    Clock::time_point deadline;
    Digest challenge;
    std::array<std::uint8_t, sizeof(Hello) + sizeof(Digest)> received{};
    std::size_t have = 0;
  };
  enum class Step {
    pause,
    connecting,
    challenged,
    answered,
  };
  struct Outgoing {  // connection attempt to a lower rank
    StreamId stream{};
    Endpoint where;
    Step step = Step::pause;
    Clock::time_point until{};  // end of the pause before a retry, or deadline of the handshake
    unsigned attempt = 0;
    Descriptor socket;
    Digest received{};
    std::size_t have = 0;
    Hello hello{};
    Digest challenge{};
    std::string failure = "no answer";
  };

  Digest proof(const char* role, const Digest& challenge, const Hello& hello) const;
  void poll_once();
  void admit(int listener);
  bool serve(Incoming& peer);  // returns false if the caller must remove `peer` from incoming_
  bool welcome(Incoming& peer);
  void advance(Outgoing& attempt);
  void connect(Outgoing& attempt);
  void answer(Outgoing& attempt);
  void fail(Outgoing& attempt, std::string why);
  std::string missing(const std::function<std::string(int)>& describe) const;

  Identity identity_;
  Digest group_;
  std::vector<std::string> addresses_;        // listening address of each rail
  std::vector<Descriptor> listeners_;         // listening socket of each rail
  std::map<StreamId, std::size_t> expected_;  // rail of each expected stream
  std::list<Incoming> incoming_;
  std::list<Outgoing> outgoing_;
  std::map<StreamId, Descriptor> connected_;
};

}  // namespace atoll_host_backend

// How ranks of different hosts connect: the lower rank of a pair listens, the higher rank connects,
// and both prove that they know the job's token before they trust each other.
//
// Handshake when C connects to L:
//   L -> C  challenge: 32 random bytes
//   C -> L  hello: version, both ranks, the number of the stream, SHA-256 of the group's id, 32
//           random bytes; then HMAC(token, "connect", challenge, hello)
//   L -> C  HMAC(token, "accept", challenge, hello)
// A stranger gets random bytes and a closed connection. The listener serves many incoming
// connections at once, each for a bounded time, so that a silent one blocks nobody.
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

// What this rank states about itself in a handshake.
struct Identity {
  std::string token;
  std::string group;  // id of the group
  int rank;
};

// The connections with one rank, indexed by stream number.
using Streams = std::vector<Descriptor>;

// Identifies a connection: peer rank and stream number.
using StreamId = std::pair<int, int>;

// Addresses of a connection to a listening rank.
struct Endpoint {
  std::string from;  // address of this host on the rail; "" lets the kernel choose
  std::string address;
  std::uint16_t port = 0;
};

class Rendezvous {
 public:
  using Clock = std::chrono::steady_clock;

  // Listens on each of `addresses`, one per rail, or on all addresses of this host if one of them
  // cannot be bound.
  Rendezvous(Identity identity, std::vector<std::string> addresses);

  std::vector<std::uint16_t> ports() const;          // indexed by rail
  void expect(StreamId stream, std::size_t rail);    // a higher rank will connect to this rank
  void connect_to(StreamId stream, Endpoint where);  // this rank will connect to a lower rank

  // Establishes all announced streams. Calls `check` from time to time; it may throw. At the
  // deadline throws Error(ATOLL_TIMEOUT) that names the missing ranks as `describe` formats them.
  std::map<int, Streams> run(Clock::time_point deadline, const std::function<void()>& check,
                             const std::function<std::string(int)>& describe);

 private:
  struct Incoming {  // accepted connection of an unknown peer
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
    Clock::time_point until{};  // end of the pause or of the handshake
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
  bool serve(Incoming& peer);  // returns false when the entry is to be removed
  bool welcome(Incoming& peer);
  void advance(Outgoing& attempt);
  void connect(Outgoing& attempt);
  void answer(Outgoing& attempt);
  void fail(Outgoing& attempt, std::string why);
  std::string missing(const std::function<std::string(int)>& describe) const;

  Identity identity_;
  Digest group_;
  std::vector<std::string> addresses_;        // indexed by rail
  std::vector<Descriptor> listeners_;         // indexed by rail
  std::map<StreamId, std::size_t> expected_;  // rail of each expected stream
  std::list<Incoming> incoming_;
  std::list<Outgoing> outgoing_;
  std::map<StreamId, Descriptor> connected_;
};

}  // namespace atoll_host_backend

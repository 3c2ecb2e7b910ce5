// How ranks of different hosts find each other: the lower rank of a pair listens, the higher one
// connects, and both prove that they know the job's token before either trusts the other.
//
// Handshake, C connects to L:
//   L -> C  challenge: 32 random bytes
//   C -> L  hello: version, the two ranks, which of their streams, SHA-256 of the group's id, 32
//           random bytes of its own; HMAC(token, "connect", challenge, hello)
//   L -> C  HMAC(token, "accept", challenge, hello)
// A stranger gets random bytes and a closed connection. The listener serves many guests at once,
// each for a bounded time, so that one that stays silent keeps nobody out.
//
// Rail: one of a host's networks. A rank listens once per rail, and each stream of a pair has its
// rail; one that cannot be reached is an error, also when others can.
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

namespace atoll_sdk::host {

struct Hello {
  std::uint32_t magic;
  std::uint32_t version;
  std::int32_t from;
  std::int32_t to;
  std::int32_t stream;
  std::int32_t reserved;
  atoll_sdk::Digest group;
  atoll_sdk::Digest nonce;
};
static_assert(sizeof(Hello) == 88);

// Who one is, for a handshake.
struct Identity {
  std::string token;
  std::string group;  // id
  int rank;
};

// The connections with one rank, by stream.
using Streams = std::vector<atoll_sdk::Descriptor>;

// Which connection: rank and stream.
using Link = std::pair<int, int>;

// The way to a listening rank.
struct Way {
  std::string from;  // own address on the rail; "": the kernel chooses
  std::string address;
  std::uint16_t port = 0;
};

class Rendezvous {
 public:
  using Clock = std::chrono::steady_clock;

  // Listens on each of `addresses`, one per rail, if it belongs to this host, else on all.
  Rendezvous(Identity identity, std::vector<std::string> addresses);

  std::vector<std::uint16_t> ports() const;  // by rail
  void expect(Link link, std::size_t rail);  // of a higher rank, which will connect
  void call(Link link, Way way);             // of a lower one

  // Opens every link named before. `check` is called now and then and may throw. At the
  // deadline: Error(ATOLL_TIMEOUT) that names the missing ones, as `describe` words them.
  std::map<int, Streams> meet(Clock::time_point deadline, const std::function<void()>& check,
                              const std::function<std::string(int)>& describe);

 private:
  struct Guest {  // connected to us, not known yet
    atoll_sdk::Descriptor socket;
    Clock::time_point deadline;
    atoll_sdk::Digest challenge;
    std::array<std::uint8_t, sizeof(Hello) + sizeof(atoll_sdk::Digest)> received{};
    std::size_t have = 0;
  };
  enum class Step {
    pause,
    connecting,
    challenged,
    answered,
  };
  struct Call {  // our connection to a lower rank
    Link link{};
    Way way;
    Step step = Step::pause;
    Clock::time_point until{};  // end of the pause, or of the handshake
    unsigned attempt = 0;
    atoll_sdk::Descriptor socket;
    atoll_sdk::Digest received{};
    std::size_t have = 0;
    Hello hello{};
    atoll_sdk::Digest challenge{};
    std::string failure = "no answer";
  };

  atoll_sdk::Digest proof(const char* role, const atoll_sdk::Digest& challenge,
                          const Hello& hello) const;
  void poll_once();
  void admit(int listener);
  bool serve(Guest& guest);  // false: done with it
  bool welcome(Guest& guest);
  void advance(Call& call);
  void connect(Call& call);
  void answer(Call& call);
  void fail(Call& call, std::string why);
  std::string missing(const std::function<std::string(int)>& describe) const;

  Identity identity_;
  atoll_sdk::Digest group_;
  std::vector<std::string> addresses_;            // by rail
  std::vector<atoll_sdk::Descriptor> listeners_;  // by rail
  std::map<Link, std::size_t> expected_;          // the rail of each
  std::list<Guest> guests_;
  std::list<Call> calls_;
  std::map<Link, atoll_sdk::Descriptor> connected_;
};

}  // namespace atoll_sdk::host

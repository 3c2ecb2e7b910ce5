// Rendezvous connects a rank with ranks of other hosts over TCP, on demand. The lower rank of each
// pair listens, and the higher rank connects. If the lower rank needs the connection first, it
// calls the higher rank, which then connects.
//
// A thread accepts connections and performs the handshakes (tcp_handshake.hpp), so a rank can send
// to a rank that is busy with something else. Processes without the token can neither stop the
// thread nor keep ranks out: it accepts few connections per turn, keeps few of them until they have
// proved their identity, drops the oldest for a new one, and counts connections from addresses of
// the group apart from all others.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collectives/layout.hpp"
#include "host/tcp_handshake.hpp"
#include "host/tcp_socket.hpp"

namespace atoll_host_backend {

// Network says which TCP connections join two ranks of different hosts. Both ranks compute the same
// connections, so they need not agree on them.
//
// A rail is one of a host's networks. A rank listens once per rail. The connections of a pair of
// ranks, called streams, are assigned in turn to the rails that both ranks have.
class Network {
 public:
  // Throws Error(ATOLL_INVALID_ARGUMENT) if a rank has too many rails.
  explicit Network(const atoll_group& group);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(rails_.size()); }
  bool is_remote(int rank) const { return layout_.host_of(rank) != layout_.host_of(rank_); }
  // Returns the addresses of a rank, one per rail.
  const std::vector<std::string>& rails(int rank) const {
    return rails_[static_cast<std::size_t>(rank)];
  }
  // Number of rails that this rank and `rank` both have.
  std::size_t common_rails(int rank) const;
  // Number of streams that join this rank and `rank`.
  int streams(int rank) const;
  // Rail of a stream. Ranks of a host begin with different rails to spread the load.
  std::size_t rail(int rank, int stream) const;

 private:
  int rank_;
  atoll_collectives::Layout layout_;
  int per_rail_;  // number of streams per rail and pair of ranks
  std::vector<std::vector<std::string>> rails_;
};

// One TCP connection of a pair of ranks.
struct Connection {
  Fd socket;
  std::string ends;  // hosts and addresses of both ends, for error texts
};

// The connections with one rank, indexed by stream number.
using Streams = std::vector<Connection>;

// Limits of time for connections.
struct Limits {
  std::chrono::nanoseconds cut;   // time without any answer after which a network counts as cut
  std::chrono::nanoseconds open;  // time after which a connection that always fails is given up
};

class Rendezvous {
 public:
  using Clock = std::chrono::steady_clock;

  // Listens on each rail of this rank and starts the thread.
  Rendezvous(Identity identity, Network network, Limits limits);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  ~Rendezvous();

  // Returns the ports on which this rank listens, one per rail.
  const std::vector<std::uint16_t>& ports() const { return ports_; }
  const Network& network() const { return network_; }
  const std::string& host() const { return handshake_.identity().host; }

  // Starts to connect with `rank`, which listens at `ports`, one per rail.
  void want(int rank, const std::vector<std::uint16_t>& ports);
  // Returns the connections with `rank` once all of them exist, and an empty list before. Throws
  // Error(ATOLL_PEER_LOST) if no connection is possible.
  Streams take(int rank);
  // Returns why there is no connection with `rank` yet, or "".
  std::string reason(int rank);
  // A descriptor, readable when take() can return connections or throw. calm() makes it unreadable.
  int news() const { return news_.get(); }
  void calm() const noexcept;

 private:
  enum class Kind {
    wake,
    listener,
    incoming,
    outgoing,
  };
  struct Watched {  // the object to which an event of epoll belongs
    Kind kind;
  };
  struct Listener : Watched {
    Fd socket;
  };
  enum Origin : std::size_t {
    stranger,  // the connection comes from an address that no rank of the group has
    member,    // the connection comes from an address of a rank of the group
    proven,    // the hello was signed with the token; each such connection has its own nonce
    origins,
  };
  struct Incoming;
  using Queue = std::list<Incoming>;  // connections in order of arrival, and so of deadlines
  struct Incoming : Watched {
    Queue::iterator self;
    Fd socket;
    Clock::time_point deadline;
    Origin origin = stranger;
    Arrival<Signed<Hello>> hello{};
    Signed<Answer> answer{};
    Arrival<Digest> confirmation{};
  };

  enum class Step {
    pause,
    connecting,
    awaiting,  // the hello is sent; the answer has not arrived
  };
  enum class Failure {
    refused,      // no process listens at the address and port
    unreachable,  // the other host does not answer
    rejected,     // the other side ended the handshake
    silent,       // the other side's kernel answers, but not its process, which may be stopped
  };
  struct Outgoing : Watched {
    int rank = 0;
    int stream = 0;
    Purpose purpose = Purpose::connect;
    std::string own;   // address of this rank on the rail
    std::string from;  // source address of the connection; "" lets the kernel choose
    std::string address;
    std::uint16_t port = 0;
    Step step = Step::pause;
    Clock::time_point until{};  // end of the pause, or deadline of the step
    unsigned attempt = 0;
    Fd socket;
    Signed<Hello> hello{};
    Arrival<Signed<Answer>> answer{};
    Clock::time_point began{};          // start of the current attempt
    Clock::time_point failing_since{};  // start of the first of the failed attempts in a row
    unsigned failures = 0;              // number of failed attempts in a row
    bool done = false;
  };
  struct Peer {
    std::map<int, Connection> streams;
    bool wanted = false;
    bool taken = false;
    bool lost = false;
    std::string failure;  // why a connection is missing
  };
  struct Request {
    int rank;
    std::vector<std::uint16_t> ports;
  };

  void run() noexcept;
  void turn();
  int time_to_wait() const;
  void watch(int socket, std::uint32_t events, Watched& what);
  void wake() const noexcept;
  void announce() const noexcept;
  bool is_complete(int rank, const Peer& peer) const;
  bool needs(int rank, int stream);
  void establish(int rank, int stream, Fd socket, const std::string& host);

  void admit(const Listener& listener);
  void pause_accepting();
  void serve(Incoming& peer);
  bool receive(Incoming& peer);  // returns false if the connection is to be dropped
  bool welcome(Incoming& peer);
  bool confirm(Incoming& peer);
  void drop(Incoming& peer);
  void expire(Clock::time_point now);

  void plan(const Request& request);
  void advance(Outgoing& attempt, Clock::time_point now);
  void connect(Outgoing& attempt, Clock::time_point now);
  void introduce(Outgoing& attempt);
  void conclude(Outgoing& attempt);
  void fail(Outgoing& attempt, Failure how, std::string why);
  bool gives_up(const Outgoing& attempt, Failure how, Clock::time_point now) const;
  void rest(Outgoing& attempt, std::chrono::nanoseconds pause);

  Handshake handshake_;
  Network network_;
  Limits limits_;
  std::set<std::string> members_;  // addresses of the ranks of other hosts
  std::list<Listener> listeners_;
  std::vector<std::uint16_t> ports_;
  Fd epoll_, wake_, news_;
  Watched waker_{Kind::wake};

  // Only thread_ uses the members up to accept_after_.
  std::array<Queue, origins> incoming_;
  std::set<Digest> pending_;  // nonces of the connections in incoming_[proven]
  std::list<Outgoing> outgoing_;
  Clock::time_point accept_after_{};  // time at which accepting begins again; 0: it does not pause

  std::mutex mutex_;  // guards the members below
  std::map<int, Peer> peers_;
  std::vector<Request> requests_;
  std::string broken_;  // error that ended the thread; empty if there is none

  std::atomic<bool> stopping_ = false;
  std::jthread thread_;
};

}  // namespace atoll_host_backend

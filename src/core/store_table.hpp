// The state of the store: values, waiting requests, and the ranks that have joined. It uses no
// sockets; answers are passed to a function. Only the server's thread calls it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "atoll/error.hpp"
#include "core/socket.hpp"

namespace atoll_v1::atoll::store {

class Connection;

struct Peer {
  enum class State {
    absent,
    present,
    departed,
    lost
  };
  State state = State::absent;
  std::string host;
  int pid = 0;
};

// The ranks of the job, with the host and pid of each rank that has joined.
class Roster {
 public:
  explicit Roster(int size) : peers_(static_cast<std::size_t>(size)) {}
  int size() const noexcept { return static_cast<int>(peers_.size()); }
  Peer& operator[](int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& operator[](int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  // Returns "rank 2 (host h, pid p)", or "rank 2" before the rank has joined.
  std::string named(int rank) const;
  // Lists the ranks in `state` as text of limited length; "" if there are none.
  std::string named(Peer::State state) const;
  bool any(Peer::State state) const;

 private:
  std::vector<Peer> peers_;
};

// Returns "a, b, c"; a long list is cut to 16 names and a count of the others.
std::string list_of(const std::vector<std::string>& names);

// A request of a rank that the store cannot answer yet, such as a get() of an unknown key.
struct Waiter {
  Connection* connection = nullptr;
  std::uint64_t request = 0;
  net::Clock::time_point deadline;
  std::chrono::milliseconds timeout{0};
};

class Table {
 public:
  using Body = std::shared_ptr<const std::string>;
  using Reply = std::function<void(const Waiter&, std::optional<ErrorCode>, Body)>;

  Table(const Roster& roster, Reply reply) : roster_(roster), reply_(std::move(reply)) {}

  void put(const std::string& key, std::string value);
  void get(const Waiter& waiter, const std::string& key);
  // `members` are the ranks that take part, in ascending order; empty means all ranks.
  void exchange(const Waiter& waiter, int rank, const std::string& key, std::string value,
                const std::vector<int>& members);
  // Starts a poll of all present ranks and returns the number of the poll, which the answers carry.
  std::uint64_t ask(const Waiter& waiter);
  // Adds the answer of a rank; does nothing if the poll has ended.
  void answer(std::uint64_t number, int rank, std::string text);

  net::Clock::time_point next_deadline(net::Clock::time_point latest) const;
  void expire(net::Clock::time_point now);
  // A rank has left the job: fails the exchanges and barriers that the rank has not joined, which
  // can never complete, and completes the polls that waited only for the answer of this rank.
  void depart(int rank);
  void forget(const Connection& connection);
  void forget_all();

 private:
  // One exchange or barrier in progress.
  struct Round {
    struct Entry {
      std::optional<std::string> value;
      Waiter waiter;
      bool gave_up = false;   // the rank took part until it timed out
      bool is_member = true;  // the rank takes part in the exchange
      bool is_missing() const { return is_member && !value; }
    };
    std::vector<Entry> entries;  // values of the exchange, indexed by rank
    std::size_t bytes = 0;
  };
  // A question from one rank to all ranks.
  struct Poll {
    Waiter waiter;
    std::vector<std::optional<std::string>> answers;  // answers that have arrived, indexed by rank
  };

  void complete(const Round& round);
  void reject(Round& round, Round::Entry& entry, ErrorCode code, const std::string& why);
  std::string missing_in(const Round& round) const;
  void settle();  // completes the polls that every present rank has answered
  bool is_complete(const Poll& poll) const;
  void finish(const Poll& poll) const;

  const Roster& roster_;
  Reply reply_;
  std::unordered_map<std::string, Body> values_;
  std::map<std::string, std::vector<Waiter>> waiting_;  // get requests that wait for a key, by key
  std::map<std::string, Round> rounds_;
  std::map<std::uint64_t, Poll> polls_;
  std::uint64_t next_poll_ = 1;
};

}  // namespace atoll_v1::atoll::store

// The state of the store: values, waiting requests, and the ranks that have joined. It uses no
// sockets; answers are passed to a function. Only the server's thread calls it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "core/socket.hpp"
#include "store/protocol.hpp"

namespace atoll_v1::atoll::store {

class Connection;

struct Peer {
  enum class State {
    absent,
    present,
    departed,
    lost,
    regrouped,  // asks for a place in the next epoch
  };
  State state = State::absent;
  std::string host;
  int pid = 0;

  bool is_gone() const noexcept { return state != State::absent && state != State::present; }
  const char* went() const noexcept {
    if (state == State::regrouped) return "rebuilds its World";
    return state == State::lost ? "was lost" : "has left the job";
  }
};

// The ranks of the job, with the host and pid of each rank that has joined.
class Roster {
 public:
  explicit Roster(int size) : peers_(static_cast<std::size_t>(size)) {
    counts_[static_cast<std::size_t>(Peer::State::absent)] = size;
  }
  int size() const noexcept { return static_cast<int>(peers_.size()); }
  const Peer& operator[](int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  void join(int rank, std::string host, int pid);
  void set(int rank, Peer::State state);
  // Returns "rank 2 (host h, pid p)", or "rank 2" before the rank has joined.
  std::string named(int rank) const;
  // Lists the ranks in `state` as text of limited length; "" if there are none.
  std::string named(Peer::State state) const;
  bool any(Peer::State state) const { return counts_[static_cast<std::size_t>(state)] > 0; }
  bool any_gone() const {
    return any(Peer::State::departed) || any(Peer::State::lost) || any(Peer::State::regrouped);
  }

 private:
  std::vector<Peer> peers_;
  std::array<int, 5> counts_{};  // number of ranks in each state
};

// Makes the text "a, b, c" of names; a long list is cut to 16 names and a count of the others.
class NameList {
 public:
  // `name` is a function, because formatting the names of thousands of ranks takes long.
  template <class Name>
  void add(const Name& name) {
    if (count_++ < most) text_ += (text_.empty() ? "" : ", ") + std::string(name());
  }
  bool empty() const noexcept { return count_ == 0; }
  std::string text() const;

 private:
  static constexpr std::size_t most = 16;
  std::size_t count_ = 0;
  std::string text_;
};

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
  // Stores a value unless the key has one. Returns the value that the key has then, and whether it
  // is this one.
  std::pair<Body, bool> claim(const std::string& key, std::string value);
  // Answers with the values of all keys, in order, as soon as every key has one.
  void get(const Waiter& waiter, std::vector<std::string> keys);
  // Deletes all keys that begin with `prefix` once each of the ranks (empty: all ranks) has called
  // this function or is gone.
  void release(int rank, const std::string& prefix, const std::vector<Run>& ranks);
  std::size_t values() const noexcept { return values_.size(); }
  // `members` are the ranks that take part; empty means all ranks.
  void exchange(const Waiter& waiter, int rank, const std::string& key, std::string value,
                const std::vector<Run>& members);
  // Ends an exchange that `rank` has joined on all its ranks, also those that join later.
  void cancel(int rank, const std::string& key, const std::string& why);
  // Starts a poll of all present ranks and returns the number of the poll, which the answers carry.
  std::uint64_t ask(const Waiter& waiter);
  // Returns true while a poll that this connection has started is in progress.
  bool asks(const Connection& connection) const;
  // Adds the answer of a rank; does nothing if the poll has ended.
  void answer(std::uint64_t number, int rank, std::string text);

  // Returns a time at or before the first deadline of a waiting request.
  net::Clock::time_point next_deadline() const noexcept { return next_deadline_; }
  void expire(net::Clock::time_point now);
  // A rank has left the job or was lost: fails the exchanges and barriers that the rank has not
  // joined, which can never complete, and completes the polls that waited only for its answer.
  void depart(int rank);
  void forget(const Connection& connection);
  void forget_all();

 private:
  // A get() that waits for keys.
  struct Fetch {
    Waiter waiter;
    std::vector<std::string> keys;
    std::vector<Body> values;  // null for each key without a value
    std::size_t missing = 0;
  };
  // One exchange or barrier in progress.
  struct Round {
    struct Entry {
      std::optional<std::string> value;
      Waiter waiter;
      bool gave_up = false;          // true if the rank took part until it timed out
      bool knows_of_cancel = false;  // true if the rank was told that the exchange is cancelled
    };
    std::vector<Run> runs;       // the members; empty means all ranks
    std::vector<int> members;    // ranks of the members, in ascending order
    std::vector<Entry> entries;  // one per member
    std::size_t joined = 0;      // number of entries with a value
    std::size_t bytes = 0;
    std::optional<std::string> cancelled;  // why a rank has cancelled the exchange
    int rank_at(std::size_t i) const { return members.empty() ? static_cast<int>(i) : members[i]; }
    const Round::Entry* entry_of(int rank) const;
    Round::Entry* entry_of(int rank);
    std::vector<int> absent() const;  // ranks that have not joined, and did not give up either
  };
  // An exchange that a rank has given up.
  struct Timeout {
    net::Clock::time_point when;
    std::vector<int> causes;  // see causes_of()
  };
  // A question from one rank to all ranks.
  struct Poll {
    Waiter waiter;
    std::vector<std::optional<std::string>> answers;  // answers that have arrived, indexed by rank
    std::set<int> unanswered;  // ranks that were asked, have not answered and have not left since
  };

  void watch(const Waiter& waiter);
  void finish(const Fetch& fetch) const;
  void abandon(std::uint64_t number);
  void open(Round& round, const std::vector<Run>& runs) const;
  void complete(const Round& round);
  // Returns true if no rank waits in the round, and all ranks know if it was cancelled.
  bool is_over(const Round& round) const;
  void erase(const std::string& prefix);
  void forget_rounds();  // removes the rounds that are over
  static void withdraw(Round& round, Round::Entry& entry);
  void reject(Round& round, Round::Entry& entry, ErrorCode code, const std::string& why);
  // Returns the ranks that delay `round`, which began at `begin`: each rank that is absent, or, if
  // that rank waits or has waited in another exchange since then, the ranks that delay this one.
  std::vector<int> causes_of(const Round& round, net::Clock::time_point begin) const;
  std::string missing_in(const Round& round) const;
  std::string reason_of(const Round& round, const std::vector<int>& causes) const;
  std::string names_of(const std::vector<int>& ranks) const;
  void settle();  // completes the polls that wait for no rank
  void finish(const Poll& poll) const;
  void expire_fetches(net::Clock::time_point now);
  void expire_rounds(net::Clock::time_point now);

  const Roster& roster_;
  Reply reply_;
  std::map<std::string, Body> values_;  // sorted by key, so that release() finds a prefix
  std::map<std::uint64_t, Fetch> fetches_;
  // Fetches that wait for a key, with the position of the key in the fetch.
  std::unordered_map<std::string, std::vector<std::pair<std::uint64_t, std::size_t>>> waiting_;
  std::map<std::string, Round> rounds_;
  std::map<int, Timeout> timeouts_;  // the last one of each rank
  std::map<std::uint64_t, Poll> polls_;
  std::map<std::string, std::set<int>> readers_;  // ranks that have not released a prefix yet
  std::uint64_t next_number_ = 1;                 // number of the next fetch or poll
  // A time at or before the first deadline of a waiting request. It may be that of a request that
  // has been answered; expire() then scans the requests once without effect.
  net::Clock::time_point next_deadline_ = net::Clock::time_point::max();
};

inline Table::Body shared(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace atoll_v1::atoll::store

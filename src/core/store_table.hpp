// What the store knows: keys, requests that wait, and who is there. No sockets: answers leave
// through a function. Used by the server's thread alone.
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

// The ranks of the job, as far as they have said hello.
class Roster {
 public:
  explicit Roster(int size) : peers_(static_cast<std::size_t>(size)) {}
  int size() const noexcept { return static_cast<int>(peers_.size()); }
  Peer& operator[](int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& operator[](int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  // "rank 2 (host h, pid p)", or "rank 2" before its hello.
  std::string named(int rank) const;
  // Those in `state`, as text, at most a screenful; "" for none.
  std::string named(Peer::State state) const;
  bool any(Peer::State state) const;

 private:
  std::vector<Peer> peers_;
};

// "a, b, c"; of many names the first ones and a count.
std::string list_of(const std::vector<std::string>& names);

// Who asked, to be answered later.
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
  void exchange(const Waiter& waiter, int rank, const std::string& key, std::string value);

  net::Clock::time_point next_deadline(net::Clock::time_point latest) const;
  void expire(net::Clock::time_point now);
  // A rank has said farewell: rounds that it has not joined can never complete.
  void depart(int rank);
  void forget(const Connection& connection);
  void forget_all();

 private:
  // One exchange or barrier under way.
  struct Round {
    struct Entry {
      std::optional<std::string> value;
      Waiter waiter;
      bool gave_up = false;  // it was in the round until its time was over
    };
    std::vector<Entry> entries;  // by rank
    std::size_t bytes = 0;
  };
  using Rounds = std::map<std::string, Round>;

  void complete(const Round& round);
  void reject(Round& round, Round::Entry& entry, ErrorCode code, const std::string& why);
  std::string missing_in(const Round& round) const;

  const Roster& roster_;
  Reply reply_;
  std::unordered_map<std::string, Body> values_;
  std::map<std::string, std::vector<Waiter>> waiting_;  // by key
  Rounds rounds_;
};

}  // namespace atoll_v1::atoll::store

// Questions from one rank to all ranks, and the answers so far. Like Table, this code uses no sockets,
// and only the server's thread calls it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/store.hpp"
#include "core/store_table.hpp"

namespace atoll_v1::atoll::store {

std::string encode(const std::vector<Answered>& answers);
std::vector<Answered> decode_answers(std::string_view body);

class Polls {
 public:
  Polls(const Roster& roster, Table::Reply reply) : roster_(roster), reply_(std::move(reply)) {}

  // Starts a poll and returns its number, which the answers carry.
  std::uint64_t open(const Waiter& waiter);
  // Adds the answer of a rank; does nothing if the poll has ended.
  void answer(std::uint64_t number, int rank, std::string text);
  // Completes the polls that every present rank has answered. Call after open() and when a rank leaves.
  void settle();

  net::Clock::time_point next_deadline(net::Clock::time_point latest) const;
  void expire(net::Clock::time_point now);
  void forget(const Connection& connection);
  void forget_all() { polls_.clear(); }

 private:
  struct Poll {
    Waiter waiter;
    std::vector<std::optional<std::string>> answers;  // indexed by rank
  };
  bool complete(const Poll& poll) const;
  void finish(const Poll& poll) const;

  const Roster& roster_;
  Table::Reply reply_;
  std::map<std::uint64_t, Poll> polls_;
  std::uint64_t next_number_ = 1;
};

}  // namespace atoll_v1::atoll::store

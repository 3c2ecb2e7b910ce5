// Looks at a running job from outside, as `atoll-topo --top` does.
//
// An observer is no rank of the job: it can read what the ranks do, change nothing, and come and go
// at any time. It needs the address and the token of the job's store (ATOLL_ADDR, ATOLL_TOKEN). The
// ranks answer only when an observer asks, from the thread that reads their connection to the
// store, so they answer even while their collectives hang.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/flight.hpp"

namespace atoll_v1::atoll {

// The communicators of a rank, and what the rank has called on each.
struct ObservedCommunicator {
  std::string id;    // the same on all its ranks, and unique in the job
  std::string name;  // such as "shard"
  std::uint64_t collectives_enqueued = 0;
  // The collective in progress, counted from 0, and the time since its start; -1: none.
  std::int64_t running = -1;
  double seconds = 0;
};

// The operation of a rank that has run longest, or else its last one.
struct ObservedOperation {
  std::string communicator;  // name of the communicator
  std::string kind;          // "all_reduce" ...
  std::string text;          // the call, such as "all_reduce 42 (1024 x f32, sum)"
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  FlightState state = FlightState::enqueued;
  double seconds = 0;  // since the rank reached this state
};

// All texts are safe for a terminal.
struct ObservedRank {
  enum class State {
    answers,
    silent,    // no answer: its process is stopped, or its host is unreachable
    departed,  // has left the job
    absent     // has not joined the job yet
  };
  State state = State::absent;
  std::string host;
  int pid = 0;
  std::int64_t step = -1;         // the last mark_step(); -1: none
  std::uint64_t bytes = 0;        // of all operations that have ended
  std::int64_t monotonic_ns = 0;  // time of the answer on the steady clock of the rank
  std::optional<ObservedOperation> operation;
  // At most max_observed_communicators that are open, the last ones opened.
  std::vector<ObservedCommunicator> communicators;
};
inline constexpr std::size_t max_observed_communicators = 32;

// A rank for which others wait.
struct WaitedFor {
  int rank = 0;
  int waiting = 0;     // number of ranks that wait for it
  double seconds = 0;  // longest wait of these ranks
  std::string reason;  // such as "has not called collective 7 of communicator shard"
};
// Finds the ranks for which others wait: silent ones, and those that have not reached a collective
// that other ranks are in and that do not themselves wait. `ranks` is indexed by rank. The ranks
// with the longest waits come first.
ATOLL_API std::vector<WaitedFor> waited_for(std::span<const ObservedRank> ranks);

class ATOLL_API Observer {
 public:
  // Connects to the store at `address` (host:port). Throws Error(io) or Error(timeout) if no job
  // answers there, Error(bad_data) for a wrong token or a process that is no store, Error(mismatch)
  // if the job runs another version of atoll, Error(unsupported) if it has too many observers, and
  // Error(invalid_argument) for a malformed address or an empty token.
  Observer(const std::string& address, const std::string& token,
           std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~Observer();
  Observer(Observer&&) noexcept;
  Observer& operator=(Observer&&) noexcept;

  // Asks all ranks and returns their answers by rank, after at most `patience` (up to 10 s).
  // Returns nothing when the job has ended. Throws the failure of the job, and Error(peer_lost)
  // when rank 0 is lost.
  std::optional<std::vector<ObservedRank>> look(
      std::chrono::milliseconds patience = std::chrono::seconds(1));

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll

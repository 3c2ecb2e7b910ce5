// Looks at a running job from outside, as `atoll-topo --top` does.
//
// An observer is not a rank of the job. It reads what the ranks do and cannot change anything; it
// may connect and disconnect at any time. It needs the address and the token of the job's store
// (ATOLL_ADDR, ATOLL_TOKEN). A rank answers only when an observer asks. The thread that reads the
// rank's connection to the store answers, so a rank answers even while its collectives hang.
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

// A communicator of a rank, and the calls of the rank on it.
struct ObservedCommunicator {
  std::string id;    // id, equal on all ranks of the communicator and unique in the job
  std::string name;  // name of the communicator, such as "shard"
  std::uint64_t collectives_enqueued = 0;
  std::int64_t running = -1;  // number of the collective in progress, from 0; -1: none
  double seconds = 0;         // seconds since the start of this collective
};

// The operation in progress that a rank called first. If no operation is in progress: the last one
// that the rank called.
struct ObservedOperation {
  std::string communicator;  // name of the communicator
  std::string kind;          // kind of the operation, such as "all_reduce"
  std::string text;          // the call, such as "all_reduce 42 (1024 x f32, sum)"
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  FlightState state = FlightState::enqueued;
  double seconds = 0;  // seconds since the rank reached this state
};

// The state of one rank. A program may print the texts to a terminal: they contain no control
// characters.
struct ObservedRank {
  enum class State {
    answers,
    unreadable,  // the rank's answer is malformed
    silent,      // the rank did not answer: its process is stopped, or its host is unreachable
    departed,    // the rank has left the job
    absent       // the rank has not joined the job yet
  };
  State state = State::absent;
  std::string host;
  int pid = 0;
  std::int64_t step = -1;         // number that the rank passed to mark_step() last; -1: none
  std::uint64_t bytes = 0;        // bytes of all operations that have ended
  std::int64_t monotonic_ns = 0;  // time of the answer on the steady clock of the rank
  std::optional<ObservedOperation> operation;
  // The open communicators; if there are more than max_observed_communicators, those opened last.
  std::vector<ObservedCommunicator> communicators;
};
inline constexpr std::size_t max_observed_communicators = 32;

// A rank for which others wait.
struct WaitedFor {
  int rank = 0;
  int waiting = 0;     // number of ranks that wait for this rank
  double seconds = 0;  // longest time that one of these ranks has waited
  std::string reason;  // why, such as "has not called collective 7 of communicator shard"
};
// Finds the ranks for which others wait. These are the silent ranks, and each rank that has not
// called a collective in which other ranks are, unless that rank is itself in a collective.
// `ranks` is indexed by rank. The ranks with the longest waits come first.
ATOLL_API std::vector<WaitedFor> waited_for(std::span<const ObservedRank> ranks);

class ATOLL_API Observer {
 public:
  // Connects to the store at `address` (host:port). Throws Error(io) or Error(timeout) if no job
  // answers at this address, Error(bad_data) if the token is wrong or another kind of process
  // answers, Error(mismatch) if the job runs another version of atoll, Error(unsupported) if it has
  // too many observers, and Error(invalid_argument) for a malformed address or an empty token.
  Observer(const std::string& address, const std::string& token,
           std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~Observer();
  Observer(Observer&&) noexcept;
  Observer& operator=(Observer&&) noexcept;

  // Asks all ranks and returns their answers by rank, after at most `patience` (up to 10 s).
  // Returns nullopt when the job has ended. Throws Error(aborted) with the reason when the job has
  // failed, Error(peer_lost) when rank 0 is lost, and Error(timeout) when rank 0, which serves the
  // store, does not answer for `patience` and 5 s more. After an error, the next call connects
  // again, and throws as the constructor does.
  std::optional<std::vector<ObservedRank>> look(
      std::chrono::milliseconds patience = std::chrono::seconds(1));

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll

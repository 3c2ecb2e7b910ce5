// The board: how the ranks of one host go through an operation together.
//
// Vocabulary. Local: number of a rank among those of this host. Step: what the ranks do between two
// posts; every rank of the host takes the same steps in the same order. Post: what a rank says
// about a step when it comes to it. Phase: how far a rank is in a step; 1 is "has posted". Half: of
// the stage, where a rank lays out data that others cannot reach otherwise.
//
// Waiting is a short spin, a few yields, then sleep. The spin grows shorter while it does not help:
// where ranks share a core, a spinning rank keeps the one it waits for from running.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/exchange.hpp"
#include "collectives/seat.hpp"
#include "collectives/shm_transport.hpp"

namespace atoll_sdk {

class Board {
 public:
  // `transport` NULL: alone on this host.
  Board(Team& team, ShmTransport* transport);

  int size() const noexcept { return static_cast<int>(ranks_.size()); }
  int self() const noexcept { return self_; }
  int rank_of(int local) const noexcept { return ranks_[static_cast<std::size_t>(local)]; }

  // A step begins: nobody reads its post before the first mark(). An exchange that is given is
  // driven while this rank waits.
  void begin(const atoll_operation& operation, Exchange* exchange = nullptr);
  // This rank's post of the step, for its places; everything else of it is filled in.
  Post& announce(const Signature& signature) noexcept;
  // Says that this rank has reached `phase`; what it wrote before can be read by who has seen it.
  void mark(std::uint64_t phase);
  // Until all ranks of the host have reached `phase`. Throws Error: ATOLL_ABORTED, ATOLL_TIMEOUT.
  void await(std::uint64_t phase);
  // Of a rank that has posted.
  const Post& post_of(int local) const noexcept;
  // Throws Error(ATOLL_MISMATCH) unless all posts agree; after await(1).
  void check_posts() const;

  // Whether ranks outnumber cores, as all of them have posted: then a step is done soonest when
  // those that run do the work of those that do not.
  bool crowded() const noexcept;
  // Number of a job of this step that nobody has begun, below `jobs`; -1: none is left.
  std::int64_t claim(std::uint64_t jobs) noexcept;
  void finish_job() noexcept;
  // Until all jobs of the step are done: nobody touches this rank's buffers any more.
  void await_jobs(std::uint64_t jobs);

  // The half of the stage that belongs to the current round, of this rank to write and of others to
  // read. A round is one filling of the stage: every rank counts the same rounds.
  std::byte* stage(int local) const noexcept;
  void next_round() noexcept { ++round_; }

 private:
  using Clock = std::chrono::steady_clock;

  std::uint64_t target(std::uint64_t phase) const noexcept;
  bool reached(std::uint64_t mark) noexcept;
  bool spin(std::uint64_t mark);
  template <class Done>
  void wait(const Done& done, std::uint64_t mark);
  void check(std::uint64_t mark) const;
  std::string pending_text(std::uint64_t mark) const;
  SharedWork& work() noexcept { return seats_.front()->work; }

  Team& team_;
  ShmTransport* transport_;
  std::vector<int> ranks_;  // by local
  std::vector<Seat*> seats_;
  int self_ = 0;
  Seat alone_{};
  const atoll_operation* operation_ = nullptr;
  Exchange* exchange_ = nullptr;
  std::chrono::nanoseconds patience_;  // how long to spin
  Clock::time_point deadline_{};       // set when the first wait of a step grows long
  std::uint64_t step_ = 0;
  std::uint64_t round_ = 0;
  int seen_ = 0;  // locals below have reached the mark waited for
};

}  // namespace atoll_sdk

// LocalSync synchronizes the ranks of one host through shared memory while they perform an
// operation.
//
// A step is the unit of synchronization: every rank of the host performs the same steps in the same
// order. A phase is the progress of a rank within a step; phase 1 means that other ranks can read
// the rank's advert (its operation and buffers). Data outside registered windows goes through the
// staging buffers, which have two halves. In each round the ranks fill one half and read it; all
// ranks perform the same rounds.
//
// A waiting rank spins briefly, then yields, then sleeps. Each spin that ends without success makes
// the next spin shorter, because on a shared core a spinning rank delays the rank that it waits
// for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/exchange.hpp"
#include "collectives/shared_memory/control_block.hpp"
#include "collectives/shared_memory/shm_transport.hpp"

namespace atoll_collectives {

class LocalSync {
 public:
  // A null `transport` means that this rank is alone on its host.
  LocalSync(Team& team, ShmTransport* transport);

  int size() const noexcept { return static_cast<int>(ranks_.size()); }
  int self() const noexcept { return self_; }  // local rank of the calling rank
  int rank_of(int local) const noexcept { return ranks_[static_cast<std::size_t>(local)]; }

  // Begins a step of `operation`; the ranks of a host synchronize in steps. While this rank waits
  // in the step, it makes progress on `exchange`, unless that is null.
  void begin(const atoll_operation& operation, Exchange* exchange = nullptr);
  // Fills in this rank's advert, which shows the operation and the buffers to other ranks, and
  // returns it, so that the caller can set the window offsets of the buffers. Other ranks read the
  // advert after arrive(1).
  Advert& advertise() noexcept;
  // Publishes that this rank has reached `phase`. A rank that sees the new phase also sees
  // everything that this rank wrote to memory before.
  void arrive(std::uint64_t phase);
  // Waits until all ranks of the host have reached `phase`. Throws Error with ATOLL_ABORTED,
  // ATOLL_TIMEOUT or ATOLL_PEER_LOST.
  void await(std::uint64_t phase);
  // Returns the advert of a rank: its operation and buffers. The rank must have reached phase 1 of
  // this step.
  const Advert& advert_of(int local) const noexcept;
  // Throws Error(ATOLL_MISMATCH) unless all ranks of the host advertise the same operation. Must be
  // called after await(1).
  void check_adverts();

  // Returns true if all ranks of the host have found that ranks outnumber cores. A step is then
  // completed soonest if the running ranks also do the work of the waiting ranks.
  bool oversubscribed() const noexcept;
  // Claims the next of the step's `jobs` jobs for this rank and returns its index, or -1 if all
  // jobs have been claimed.
  std::int64_t claim(std::uint64_t jobs) noexcept;
  void finish_job() noexcept;
  // Waits until all jobs of the step are done. After that, no rank accesses this rank's buffers.
  void await_jobs(std::uint64_t jobs);

  // Returns the half of a rank's staging buffer that the current round uses. That rank writes to
  // it, and the other ranks read it.
  std::byte* staging(int local) const noexcept;
  // Returns the half that the round before the current one used.
  std::byte* previous_staging(int local) const noexcept;
  // Begins the next round, which uses the other half of each staging buffer.
  void next_round() noexcept { ++round_; }

 private:
  using Clock = std::chrono::steady_clock;

  std::uint64_t position(std::uint64_t phase) const noexcept;
  bool reached(std::uint64_t target) noexcept;
  bool spin(std::uint64_t target);
  template <class Done>
  void wait(const Done& done, std::uint64_t target);
  void check(std::uint64_t target) const;
  std::string pending_text(std::uint64_t target) const;
  SharedWork& work() noexcept { return blocks_.front()->work; }

  Team& team_;
  ShmTransport* transport_;
  std::vector<int> ranks_;             // for each local rank, its rank in the communicator
  std::vector<ControlBlock*> blocks_;  // control block of each local rank
  int self_ = 0;
  ControlBlock alone_{};  // control block that is used if this rank is alone on its host
  const atoll_operation* operation_ = nullptr;
  Exchange* exchange_ = nullptr;
  std::chrono::nanoseconds patience_;  // how long to spin before yielding
  Clock::time_point deadline_{};  // deadline of the operation; set by the first long wait of a step
  std::uint64_t step_ = 0;
  std::uint64_t round_ = 0;
  int seen_ = 0;  // lowest local rank that may not have reached the awaited position yet
};

}  // namespace atoll_collectives

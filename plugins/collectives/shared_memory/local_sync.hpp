// Synchronizes the ranks of one host in the steps of an operation, through shared memory.
//
// A step is the unit of synchronization: every rank of the host takes the same steps in the same
// order. A phase counts how far a rank is within a step; phase 1 means that its advert can be read.
// A staging buffer holds data that other ranks cannot read in a registered window. It has two
// halves; one filling of a half is a round, and every rank counts the same rounds.
//
// A waiting rank spins briefly, then yields, then sleeps. The spin gets shorter while it does not
// help, because on a shared core it delays the rank that it waits for.
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
  int self() const noexcept { return self_; }  // local rank
  int rank_of(int local) const noexcept { return ranks_[static_cast<std::size_t>(local)]; }

  // Begins a step. While this rank waits, it drives `exchange`.
  void begin(const atoll_operation& operation, Exchange* exchange = nullptr);
  // Fills in this rank's advert, except for its window offsets, which the caller may set. Other
  // ranks read it after arrive(1).
  Advert& advertise(const Signature& signature) noexcept;
  // Publishes that this rank has reached `phase`. Ranks that have seen this also see all memory
  // that this rank wrote before.
  void arrive(std::uint64_t phase);
  // Waits until all ranks of the host have reached `phase`. Throws Error: ATOLL_ABORTED,
  // ATOLL_TIMEOUT, ATOLL_PEER_LOST.
  void await(std::uint64_t phase);
  // The advert of a rank that has reached phase 1.
  const Advert& advert_of(int local) const noexcept;
  // Call it after await(1). Throws Error(ATOLL_MISMATCH) unless all adverts have the same call.
  void check_adverts() const;

  // True if all ranks see more ranks than cores. A step is then done soonest if the running ranks
  // do the work of the others.
  bool oversubscribed() const noexcept;
  // Returns the number of a job of this step that no rank has begun, or -1 if none is left.
  std::int64_t claim(std::uint64_t jobs) noexcept;
  void finish_job() noexcept;
  // Waits until all jobs of the step are done. Then no rank accesses this rank's buffers.
  void await_jobs(std::uint64_t jobs);

  // The half of the current round in a rank's staging buffer: written by that rank, read by others.
  std::byte* staging(int local) const noexcept;
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
  std::vector<int> ranks_;             // indexed by local rank
  std::vector<ControlBlock*> blocks_;  // indexed by local rank
  int self_ = 0;
  ControlBlock alone_{};  // control block of a rank that is alone on its host
  const atoll_operation* operation_ = nullptr;
  Exchange* exchange_ = nullptr;
  std::chrono::nanoseconds patience_;  // current length of the spin
  Clock::time_point deadline_{};       // set by the first long wait of a step
  std::uint64_t step_ = 0;
  std::uint64_t round_ = 0;
  int seen_ = 0;  // all lower local ranks have reached the position waited for
};

}  // namespace atoll_collectives

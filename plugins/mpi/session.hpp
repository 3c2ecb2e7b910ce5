// What this process shares with MPI. MPI starts and ends once in a process and has one world, so
// there is one Session, whatever the number of communicators.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "atoll/plugin.h"

namespace atoll_sdk::mpi {

// Throws Error(ATOLL_BACKEND), or ATOLL_MISMATCH for a truncated message, with MPI's own text.
void check(int code, const char* call);

class Session {
 public:
  static Session& get();

  // How well MPI would do here: 0 with a reason, or a preference. Starts nothing.
  struct Prospect {
    int preference = 0;
    std::string reason;
  };
  static Prospect probe(const atoll_group& world);

  // Idempotent; the first call is collective over the World. Waits for all ranks in the store
  // before it calls MPI_Init, which would wait for an absent one forever, and namelessly.
  // Initialises MPI if nobody has, asks for MPI_THREAD_MULTIPLE, takes SERIALIZED, and refuses
  // less.
  void start(const atoll_host& host, const atoll_group& group);

  // Ends MPI if start() began it. After a failure it does nothing: MPI_Finalize waits for the
  // others.
  enum class Ending {
    orderly,
    failed
  };
  void finish(Ending ending);

  // All MPI calls are made under this lock. It locks nothing when MPI gave us MPI_THREAD_MULTIPLE.
  // Under MPI_THREAD_SERIALIZED it keeps one thread at a time inside MPI, so no call that waits for
  // another rank may be made under it: only posts and tests.
  [[nodiscard]] std::unique_lock<std::mutex> lock();

  // A duplicate of MPI_COMM_WORLD, so that our messages never meet those of the program.
  MPI_Comm world() const noexcept { return world_; }
  // Reductions of u8, where those of MPI libraries disagree with C: Open MPI 4.1 saturates MPI_SUM
  // on processors with AVX, MPICH 4.0 compares as if bytes had a sign.
  struct Operators {
    MPI_Op sum = MPI_OP_NULL;  // modulo 256
    MPI_Op min = MPI_OP_NULL;
    MPI_Op max = MPI_OP_NULL;
  };
  const Operators& u8_operators() const noexcept { return u8_; }
  // False once MPI has been finalised, by us or by the program.
  bool alive() const;

  // Memory that MPI may still write to, because an operation on it was given up, stays to the end.
  void bury(std::vector<std::byte> memory);

 private:
  void meet(const atoll_host& host, const atoll_group& group) const;
  void initialise();
  void verify(const atoll_group& group) const;

  enum class State {
    idle,
    running,
    finished
  };
  std::mutex state_mutex_;
  State state_ = State::idle;
  bool initialised_here_ = false;
  int thread_level_ = MPI_THREAD_SINGLE;
  MPI_Comm world_ = MPI_COMM_NULL;
  Operators u8_;
  std::mutex serial_;
  std::mutex buried_mutex_;
  std::vector<std::vector<std::byte>> buried_;
};

}  // namespace atoll_sdk::mpi

// The process-wide state of MPI. MPI starts and ends once per process and has one world, so there is
// one Session for all communicators.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "sdk/guard.hpp"

namespace atoll_mpi {

using namespace atoll_sdk;

// Throws Error(ATOLL_BACKEND), or ATOLL_MISMATCH for a truncated message, with MPI's own text.
void check(int code, const char* call);

class Session {
 public:
  static Session& get();

  // Returns a preference, or throws Error(ATOLL_UNSUPPORTED) with the reason. Does not start MPI.
  static std::int32_t probe(const atoll_group& world);

  // Idempotent; the first call is collective over the World. It waits in the store for all ranks,
  // because MPI_Init would wait forever for an absent rank without naming it. Then it initialises
  // MPI, unless the program has done so, and requests MPI_THREAD_MULTIPLE. It accepts
  // MPI_THREAD_SERIALIZED and refuses lower levels.
  void start(const atoll_host& host, const atoll_group& group);

  // Finalizes MPI if start() initialised it. Does nothing after a failure, because MPI_Finalize
  // waits for the other ranks.
  enum class Ending {
    orderly,
    failed
  };
  void finish(Ending ending);

  // Every MPI call is made under this lock. It does nothing with MPI_THREAD_MULTIPLE. With
  // MPI_THREAD_SERIALIZED it admits one thread at a time, so a call under it must not wait for
  // another rank: only post and test operations.
  [[nodiscard]] std::unique_lock<std::mutex> lock();

  // A duplicate of MPI_COMM_WORLD, so that messages never match those of the program.
  MPI_Comm world() const noexcept { return world_; }
  // Reductions of u8. The built-in ones differ from C: Open MPI 4.1 saturates MPI_SUM on processors
  // with AVX, and MPICH 4.0 compares bytes as signed numbers.
  struct Operators {
    MPI_Op sum = MPI_OP_NULL;  // modulo 256
    MPI_Op min = MPI_OP_NULL;
    MPI_Op max = MPI_OP_NULL;
  };
  const Operators& u8_operators() const noexcept { return u8_; }
  // True between MPI_Init and MPI_Finalize, even if the program called them.
  bool alive() const;

  // Keeps memory until the process ends, because MPI may still access it after an aborted wait.
  void retain(std::vector<std::byte> memory);

 private:
  void wait_for_ranks(const atoll_host& host, const atoll_group& group) const;
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
  std::mutex retained_mutex_;
  std::vector<std::vector<std::byte>> retained_;
};

}  // namespace atoll_mpi

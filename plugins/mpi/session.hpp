// Session is the process-wide state of MPI. MPI starts and ends once per process and has one world,
// so all communicators share one Session.
#pragma once

#include <mpi.h>

#include <any>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "sdk/backend.hpp"

namespace atoll_mpi {

using namespace atoll_sdk;

// Throws an Error with MPI's own text unless `code` is MPI_SUCCESS. The status is ATOLL_MISMATCH
// for a truncated message, otherwise ATOLL_BACKEND.
void check(int code, const char* call);

class Session {
 public:
  static Session& get();

  // Returns the backend's preference, or throws Error(ATOLL_UNSUPPORTED) with the reason why MPI is
  // unusable. Does not start MPI.
  static std::int32_t probe(const atoll_group& world);

  // Starts MPI. Idempotent; the first call is collective over the World. The first call waits until
  // all ranks have announced themselves in the store, because MPI_Init would wait forever for an
  // absent rank without naming it. Then it initializes MPI with MPI_THREAD_MULTIPLE, unless the
  // program has initialized MPI. Throws Error if MPI provides less than MPI_THREAD_SERIALIZED.
  void start(const atoll_core& core, const atoll_group& group);

  // Finalizes MPI if start() initialized it. Ending::failed prevents that, because MPI_Finalize
  // would wait for the other ranks.
  enum class Ending {
    orderly,
    failed
  };
  void finish(Ending ending);

  // Returns the lock under which every MPI call must be made. With MPI_THREAD_MULTIPLE the lock
  // does nothing. With MPI_THREAD_SERIALIZED it admits one thread at a time. A thread that holds
  // the lock must therefore not wait for another rank: it may only post and test operations.
  [[nodiscard]] std::unique_lock<std::mutex> lock();

  // Returns a duplicate of MPI_COMM_WORLD, so that the backend's messages never match messages of
  // the program.
  MPI_Comm world() const noexcept { return world_; }
  // MPI operators that reduce i8 and the unsigned integers. MPI's built-in operators are not
  // usable: Open MPI 4.1 saturates MPI_SUM of 8 and 16 bits on processors with AVX, and MPICH 4.0
  // compares bytes as signed numbers. With these operators sums and products wrap around.
  struct Operators {
    MPI_Op sum = MPI_OP_NULL;
    MPI_Op min = MPI_OP_NULL;
    MPI_Op max = MPI_OP_NULL;
    MPI_Op product = MPI_OP_NULL;
  };
  const Operators& integer_operators() const noexcept { return integers_; }
  // Returns true between MPI_Init and MPI_Finalize, also if the program itself made these calls.
  bool alive() const;

  // Call this when operations were left unfinished. finish() then does not end MPI, which could
  // wait for them.
  void abandon() noexcept { abandoned_ = true; }
  // Keeps a container of memory until the process ends. Used for buffers that MPI may still access
  // after an aborted wait.
  void retain(std::any memory);

 private:
  void wait_for_ranks(const atoll_core& core, const atoll_group& group) const;
  void initialise();

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
  Operators integers_;
  std::atomic<bool> abandoned_{false};
  std::mutex serial_;
  std::mutex retained_mutex_;
  std::vector<std::any> retained_;
};

}  // namespace atoll_mpi

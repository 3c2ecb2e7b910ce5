// MpiCommunicator is a communicator of the mpi backend: an MPI_Comm over the ranks of a group.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "progress.hpp"
#include "session.hpp"

namespace atoll_mpi {

class MpiCommunicator {
 public:
  static constexpr std::int32_t memory_kind = ATOLL_MEMORY_CPU;
  static std::int32_t probe(const atoll_group& world) { return Session::probe(world); }
  static std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                                 std::int32_t memory);
  // Opens a communicator. Collective over the group.
  static std::unique_ptr<MpiCommunicator> open(const atoll_core& core, const atoll_group& group);
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  // Performs the operations and returns when they are complete. The first failure is final: later
  // calls throw Error(ATOLL_ABORTED).
  void submit(std::span<atoll_operation* const> operations);
  void abort() noexcept { aborted_.store(true, std::memory_order_relaxed); }

  Session& session() noexcept { return session_; }
  MPI_Comm mpi() const noexcept { return mpi_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // Returns scratch memory of at least `bytes` bytes, valid until the next call of scratch().
  std::byte* scratch(std::size_t bytes);
  // Posts one nonblocking MPI collective and waits until it is complete. `call` is its name for
  // error texts.
  template <class Post>
  void run(const char* call, Post&& post) {
    Requests requests(session_);
    requests.post(call, std::forward<Post>(post));
    requests.wait(*backoff_);
  }
  Backoff& backoff() noexcept { return *backoff_; }

 private:
  MpiCommunicator(const atoll_group& group, MPI_Comm mpi);
  void perform(const atoll_operation& operation);

  Session& session_;
  MPI_Comm mpi_;
  int rank_;
  int size_;
  std::atomic<bool> aborted_{false};
  bool broken_ = false;
  std::unique_ptr<Backoff> backoff_;  // pauses and deadline of the submit() in progress
  std::vector<std::byte> scratch_;
};

}  // namespace atoll_mpi

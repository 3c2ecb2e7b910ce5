// One communicator: an MPI_Comm over the ranks of a group, and what every collective needs from it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "progress.hpp"
#include "session.hpp"

namespace atoll_sdk::mpi {

class Comm {
 public:
  // Collective over the group.
  static std::unique_ptr<Comm> open(const atoll_host& host, const atoll_group& group);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  // Performs the operations; complete when it returns. A failure is thrown with the operation's
  // name in front, and is the last thing that the communicator does.
  void submit(atoll_operation* const* operations, int n);
  void abort() noexcept { aborted_.store(true, std::memory_order_relaxed); }

  // For the collectives.
  Session& session() noexcept { return session_; }
  MPI_Comm mpi() const noexcept { return mpi_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // Memory of at least `bytes`, until the next call.
  std::byte* scratch(std::size_t bytes);
  // Posts one nonblocking collective and waits for it.
  template <class Post>
  void run(const char* call, Post&& post) {
    Requests requests(session_);
    requests.post(call, std::forward<Post>(post));
    requests.wait(*patience_);
  }
  Patience& patience() noexcept { return *patience_; }

 private:
  Comm(const atoll_group& group, MPI_Comm mpi);
  void perform(const atoll_operation& operation);

  Session& session_;
  MPI_Comm mpi_;
  int rank_;
  int size_;
  std::atomic<bool> aborted_{false};
  bool broken_ = false;
  std::unique_ptr<Patience> patience_;  // of the submit() under way
  std::vector<std::byte> scratch_;
};

// 1 when the operation can be done here, else 0.
std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                        std::int32_t memory);

}  // namespace atoll_sdk::mpi

// One communicator: an ncclComm_t over the ranks of a group, and what every collective needs from
// it. NCCL runs in its nonblocking mode: a call may return before it has done its work, and is then
// asked until it has, so that abort() and deadlines are seen.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "atoll/plugin.h"
#include "nccl.hpp"

namespace atoll_sdk::nccl {

class Comm {
 public:
  // Collective over the group.
  static std::unique_ptr<Comm> open(const atoll_host& host, const atoll_group& group);
  // The same out of this one, which is idle, and whose every rank calls it: without another
  // bootstrap. Ranks with a NULL group get nothing.
  std::unique_ptr<Comm> split(const atoll_group* group);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  // All of them as one group of NCCL; launched when it returns. A failure is thrown with the
  // operation's name in front, and is the last thing that the communicator does.
  void submit(atoll_operation* const* operations, int n);
  void abort() noexcept;
  // Throws what went wrong after a launch.
  void check_async();

  // Until the communicator is closed: NCCL puts windows at addresses of its own, which have to be
  // the same on all ranks, and are if all open and close them in one order.
  void register_window(void* memory, std::size_t bytes);

  // For the collectives, between the begin and the end of a group.
  ncclComm_t nccl() const noexcept { return nccl_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  void* barrier_word() const noexcept { return barrier_word_.get(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Free {
    void operator()(void* memory) const noexcept { cudaFree(memory); }
  };

  Comm(const atoll_host& host, const atoll_group& group, int device);
  void start(const atoll_group& group);
  void make_barrier_word();
  static Clock::time_point deadline_of(std::int64_t timeout_ns);
  // Until NCCL has done what a call with `result` has begun.
  void settle(ncclResult_t result, std::string_view call, Clock::time_point deadline);
  void launch(std::span<atoll_operation* const> operations);
  void end() noexcept;

  atoll_host host_;
  int rank_;
  int size_;
  int device_;
  // NCCL allows one caller at a time on a communicator. Held during a call or a group of them, not
  // while NCCL is asked again and again whether it is done.
  std::mutex calls_;
  ncclComm_t nccl_ = nullptr;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> broken_{true};  // until it is open, and after a failure
  std::unique_ptr<void, Free> barrier_word_;
  std::int64_t timeout_ns_;  // to open, and to register a window
  // NCCL writes to the handle of one that it is registering, also when nobody waits any more.
  std::deque<ncclWindow_t> windows_;
  std::vector<std::unique_ptr<ncclComm_t>> splits_;  // likewise
  // To abort waits for kernels that are under way, and these may wait for what another communicator
  // has launched and is about to abort.
  std::jthread aborting_;
};

// 1 when the operation can be done here, else 0.
std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                        std::int32_t memory);

}  // namespace atoll_sdk::nccl

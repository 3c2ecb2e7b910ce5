// NcclCommunicator is a communicator of the nccl backend: an ncclComm_t over the ranks of a group.
// NCCL runs in its nonblocking mode: a call may return before it is complete, and NcclCommunicator
// then polls NCCL, so that abort() and deadlines take effect.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "atoll/plugin.h"
#include "nccl.hpp"

namespace atoll_nccl {

class NcclCommunicator {
 public:
  static constexpr std::int32_t memory_kind = ATOLL_MEMORY_CUDA;
  static std::int32_t probe(const atoll_group& world);
  static std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                                 std::int32_t memory);
  // Opens a communicator. Collective over the group.
  static std::unique_ptr<NcclCommunicator> open(const atoll_core& core, const atoll_group& group);
  // Splits this idle communicator without another bootstrap. Every rank of this communicator must
  // call split(). A rank that passes a null group gets null.
  std::unique_ptr<NcclCommunicator> split(const atoll_group* group);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Launches all operations as one NCCL group and returns when they are launched. The first failure
  // is final: later calls throw Error(ATOLL_ABORTED).
  void submit(std::span<atoll_operation* const> operations);
  void abort() noexcept;
  // Throws Error if an operation has failed after its launch.
  void check_async();

  // Registers `memory`, which mem_alloc() has allocated, as a window, which stays registered until
  // the communicator is closed. All ranks must register windows in the same order, because NCCL
  // places the windows at addresses that must be equal on all ranks. If NCCL makes no window,
  // registers the memory like that of a caller.
  void register_window(void* memory, std::size_t bytes);
  // Registers memory that mem_alloc() did not allocate, and ends such a registration.
  void register_buffer(void* memory, std::size_t bytes);
  void deregister_buffer(void* memory);

  // Returns the bytes of GPU memory that NCCL holds for those communicators of this process that
  // are open and have not failed. Returns nullopt if NCCL is older than 2.29.7, which added this.
  static std::optional<std::uint64_t> held_bytes();

  ncclComm_t nccl() const noexcept { return nccl_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  void* barrier_word() const noexcept { return barrier_word_.get(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Free {
    void operator()(void* memory) const noexcept { cudaFree(memory); }
  };

  NcclCommunicator(const atoll_core& core, const atoll_group& group, int device);
  void make_barrier_word();
  static Clock::time_point deadline_of(std::int64_t timeout_ns);
  // Returns the lock under which NCCL must be called. Throws Error after abort().
  std::unique_lock<std::mutex> lock(std::string_view call);
  // Polls until the NCCL call that returned `result` is complete. Throws Error if it fails, at the
  // deadline, or after abort().
  void complete(ncclResult_t result, std::string_view call, Clock::time_point deadline);
  // Makes NCCL calls and polls until they are complete.
  template <class Calls>
  void run(std::string_view name, Clock::time_point deadline, const Calls& calls) {
    ncclResult_t result = ncclSuccess;
    {
      const auto locked = lock(name);
      result = calls();
    }
    complete(result, name, deadline);
  }
  void check_job(std::string_view call) const;  // throws Error(ATOLL_ABORTED) if the job has failed
  void launch(std::span<atoll_operation* const> operations);
  void end() noexcept;
  // held_bytes() counts a communicator from note_open() to note_closed(). When the last
  // communicator closes, note_closed() makes transports() ignore the log so far.
  void note_open();
  void note_closed() noexcept;

  atoll_core core_;
  int rank_;
  int size_;
  int device_;
  std::string unset_key_;  // a key of the store that no rank puts
  // Serializes NCCL calls, because NCCL allows one caller at a time per communicator. The mutex is
  // held during one call or one group of calls, but not between two polls.
  std::mutex calls_;
  ncclComm_t nccl_ = nullptr;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> broken_{true};  // true while the communicator is not open yet or has failed
  std::unique_ptr<void, Free> barrier_word_;
  bool has_copy_engines_ = false;  // true once a collective of the group has used copy engines
  std::int64_t timeout_ns_;        // time limit for opening, splitting, and registering a window
  // Handles of windows and of subcommunicators. NCCL writes to a handle while it registers the
  // window or splits the communicator, even after the caller has stopped waiting. Handles therefore
  // keep their addresses until the communicator closes.
  std::deque<ncclWindow_t> windows_;
  std::vector<std::unique_ptr<ncclComm_t>> splits_;
  struct Registered {
    std::size_t bytes;
    void* handle = nullptr;  // handle of a registered buffer; null if NCCL registers no buffers
    bool is_own = false;     // true for memory of mem_alloc()
    bool is_window = false;
  };
  void* register_with_networks(void* memory, std::size_t bytes);  // returns the handle
  bool is_in_window(const void* memory) const;
  // Throws Error if [memory, memory + bytes) overlaps registered memory.
  void check_unregistered(void* memory, std::size_t bytes) const;
  std::map<std::uintptr_t, Registered> registered_;  // buffers and windows, by address
  // The thread that calls ncclCommAbort(). Each communicator has its own, because ncclCommAbort()
  // waits for running kernels, which may wait for kernels of another communicator that is about to
  // abort as well.
  std::jthread aborting_;
};

// Issues the NCCL calls for an operation whose arguments have been checked. The caller calls
// ncclGroupStart() before and ncclGroupEnd() afterwards. The result may be ncclInProgress, because
// communicators are nonblocking.
ncclResult_t perform(const NcclCommunicator& comm, const atoll_operation& operation);

}  // namespace atoll_nccl

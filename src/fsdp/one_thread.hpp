// Finds calls of one engine from two threads at the same time.
#pragma once

#include <atomic>
#include <string_view>
#include <thread>

#include "core/errors.hpp"

namespace atoll_v1::atoll::fsdp {

// The thread that is inside a call of the engine; the default id if there is none.
using CallingThread = std::atomic<std::thread::id>;

// Held during a call that uses the engine's streams. Throws Error(invalid_argument) if another
// thread is inside a call of the same engine: the order of their collectives could differ between
// ranks. Calls inside a call of the same thread, as from a callback, are allowed.
class OneThread {
 public:
  OneThread(CallingThread& calling, std::string_view call) {
    const std::thread::id self = std::this_thread::get_id();
    if (calling.load(std::memory_order_relaxed) == self) return;
    std::thread::id nobody{};
    require(calling.compare_exchange_strong(nobody, self, std::memory_order_acquire),
            "{}: another thread is inside a call of this engine, so ranks could see their calls in "
            "different orders: call the engine from one thread at a time",
            call);
    calling_ = &calling;
  }
  ~OneThread() {
    if (calling_) calling_->store({}, std::memory_order_release);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  CallingThread* calling_ = nullptr;  // null if an outer call of this thread is in progress
};

}  // namespace atoll_v1::atoll::fsdp

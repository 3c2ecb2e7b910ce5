// Finds calls of an engine that no thread may make now.
#pragma once

#include <atomic>
#include <string_view>
#include <thread>

#include "core/errors.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll::fsdp {

struct EngineCalls {
  WorldLink world;
  // The thread that is inside a call of the engine; the default id if there is none.
  std::atomic<std::thread::id> thread{};
};

// Held during a call that uses the engine's streams. Throws Error(invalid_argument) if another
// thread is inside a call of the same engine: the order of their collectives could differ between
// ranks. Calls inside a call of the same thread, as from a callback, are allowed. Also throws it if
// the World of the engine has been destroyed.
class OneThread {
 public:
  OneThread(EngineCalls& calls, std::string_view call) {
    require(
        !calls.world.is_over(),
        "{}: the World of this engine has been destroyed: destroy engines and optimizers before "
        "their World",
        call);
    const std::thread::id self = std::this_thread::get_id();
    if (calls.thread.load(std::memory_order_relaxed) == self) return;
    std::thread::id nobody{};
    require(calls.thread.compare_exchange_strong(nobody, self, std::memory_order_acquire),
            "{}: another thread is inside a call of this engine, so ranks could see their calls in "
            "different orders: call the engine from one thread at a time",
            call);
    calls_ = &calls;
  }
  ~OneThread() {
    if (calls_) calls_->thread.store({}, std::memory_order_release);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  EngineCalls* calls_ = nullptr;  // null if an outer call of this thread is in progress
};

}  // namespace atoll_v1::atoll::fsdp

// The implementation of Communicator: its backend group, and the groups for collectives in two
// levels.
#pragma once

#include <atomic>
#include <string_view>
#include <thread>

#include "comm/backend_communicator.hpp"
#include "comm/two_level.hpp"
#include "core/errors.hpp"

namespace atoll_v1::atoll {

struct Communicator::Impl {
  std::unique_ptr<TwoLevel> two_level;  // groups inside and across hosts; null if never used
  // Backend group, which operations in flight also own. It is destroyed before two_level.
  std::shared_ptr<BackendCommunicator> group;
  std::atomic<bool> in_call{false};  // true while a thread calls a collective of the communicator
  std::thread::id caller;            // thread of the last call; only the thread in a call uses it
};

// Held during a call of a collective. Throws Error(invalid_argument) if another thread is inside a
// call of the same communicator, or has called it and its operations are in flight: the order of
// the operations of the two threads could differ between ranks.
class OneCaller {
 public:
  // The delegated constructor comes first, so the destructor also runs if this one throws.
  OneCaller(Communicator::Impl& impl, std::string_view operation)
      : OneCaller(enter(impl, operation)) {
    const std::thread::id self = std::this_thread::get_id();
    if (impl.caller == self) return;
    check(impl.group->is_idle(), impl, operation, "operations of another thread are in flight");
    impl.caller = self;
  }
  ~OneCaller() { impl_.in_call.store(false, std::memory_order_release); }
  OneCaller(const OneCaller&) = delete;
  OneCaller& operator=(const OneCaller&) = delete;

 private:
  explicit OneCaller(Communicator::Impl& impl) : impl_(impl) {}
  static Communicator::Impl& enter(Communicator::Impl& impl, std::string_view operation) {
    check(!impl.in_call.exchange(true, std::memory_order_acquire), impl, operation,
          "another thread calls it at the same time");
    return impl;
  }
  static void check(bool may_call, const Communicator::Impl& impl, std::string_view operation,
                    std::string_view other) {
    require(may_call,
            "{} on communicator {}: {}, so ranks could see the operations in different orders: "
            "call it from one thread, wait for the operations of one thread before another calls, "
            "or open a communicator for each thread",
            operation, impl.group->name(), other);
  }

  Communicator::Impl& impl_;
};

}  // namespace atoll_v1::atoll

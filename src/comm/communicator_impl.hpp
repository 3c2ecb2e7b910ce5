// The implementation of Communicator: its backend group, and the groups for collectives in two
// levels.
#pragma once

#include <atomic>

#include "comm/backend_group.hpp"
#include "comm/two_level.hpp"
#include "core/errors.hpp"

namespace atoll_v1::atoll {

struct Communicator::Impl {
  std::unique_ptr<TwoLevel> two_level;  // groups inside and across hosts; null if never used
  // Backend group, which operations in flight also own. It is destroyed before two_level.
  std::shared_ptr<BackendGroup> group;
  std::atomic<bool> in_call{false};  // true while a thread calls a collective of the communicator
};

// Held during a call of a collective. Throws Error(invalid_argument) if another thread is inside a
// call of the same communicator: the order of the two operations could differ between ranks.
class OneCaller {
 public:
  explicit OneCaller(Communicator::Impl& impl) : impl_(impl) {
    require(!impl_.in_call.exchange(true, std::memory_order_acquire),
            "communicator {}: two threads call it at the same time, so ranks could see its "
            "operations in different orders: call it from one thread, or open one for each thread",
            impl_.group->name());
  }
  ~OneCaller() { impl_.in_call.store(false, std::memory_order_release); }
  OneCaller(const OneCaller&) = delete;
  OneCaller& operator=(const OneCaller&) = delete;

 private:
  Communicator::Impl& impl_;
};

}  // namespace atoll_v1::atoll

// The implementation of Communicator: its backend group, and the groups for collectives in two
// levels.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "comm/backend_communicator.hpp"
#include "comm/two_level.hpp"

namespace atoll_v1::atoll {

struct Communicator::Impl {
  std::unique_ptr<TwoLevel> two_level;  // groups inside and across hosts; null if never used
  // Backend group, which operations in flight also own. It is destroyed before two_level.
  std::shared_ptr<BackendCommunicator> group;
  std::atomic<bool> in_call{false};  // true while a thread calls a collective of the communicator
  std::thread::id caller;            // thread of the last call; only the thread in a call uses it
};

}  // namespace atoll_v1::atoll

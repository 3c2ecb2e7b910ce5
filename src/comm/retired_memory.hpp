// Memory that the user has freed but that a backend still has registered.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "comm/registry/registry.hpp"

namespace atoll_v1::atoll {

// A backend accepts one caller at a time, so memory waits here until the communicator's next call,
// or until the backend is closed if it cannot deregister memory. The memory stays allocated until
// then: NCCL requires that windows are closed first, and no other allocation may get its address.
class RetiredMemory {
 public:
  void add(std::shared_ptr<void> memory);  // callable from any thread
  // The caller must be the only one that uses `comm`. `name` is the communicator's, for the log.
  void deregister(const Plugin& plugin, atoll_comm* comm, std::string_view name);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> memories_;
  std::atomic<bool> any_{false};
};

}  // namespace atoll_v1::atoll

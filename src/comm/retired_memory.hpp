// Memory that the user has freed but that a backend still has registered.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "comm/registry/registry.hpp"

namespace atoll_v1::atoll {

// A backend accepts one caller at a time, so retired memory waits until the communicator's next
// call, or until the backend is closed if the backend cannot deregister memory. The memory stays
// allocated until then, because NCCL requires that windows are closed before their memory is freed,
// and no other allocation may get the same address in the meantime.
class RetiredMemory {
 public:
  void add(std::shared_ptr<void> memory);  // callable from any thread
  // Deregisters all retired memory. No other thread may use `comm` during the call. `name` is the
  // name of the communicator, for the log.
  void deregister(const Plugin& plugin, atoll_comm* comm, std::string_view name);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> memories_;
  std::atomic<bool> any_{false};
};

}  // namespace atoll_v1::atoll

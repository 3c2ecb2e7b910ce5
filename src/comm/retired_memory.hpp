// Memory that the user has freed but that a backend still has registered.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string_view>

#include "comm/registry/registry.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {

// A backend accepts one caller at a time, so retired memory waits until the communicator's next
// call, or until the backend is closed if the backend cannot deregister memory. The memory stays
// allocated until then, because NCCL requires that windows are closed before their memory is freed,
// and no other allocation may get the same address in the meantime.
class RetiredMemory {
 public:
  using List = std::list<std::shared_ptr<void>>;

  // Adds memory to deregister later. May be called from any thread. `memory` has one element, which
  // the caller allocated when it registered the memory: add() runs in a destructor, which must not
  // fail because an allocation fails.
  void add(List& memory) noexcept {
    const std::lock_guard lock(mutex_);
    memories_.splice(memories_.end(), memory);
    any_ = true;
  }
  // Deregisters all retired memory. No other thread may use `comm` during the call. `name` is the
  // name of the communicator, for the log.
  void deregister(const Plugin& plugin, atoll_comm* comm, std::string_view name) {
    if (!any_.load(std::memory_order_acquire)) return;
    if (plugin.table.deregister_memory == nullptr) return;
    List memories;  // memory to free after the lock is released
    {
      const std::lock_guard lock(mutex_);
      memories.swap(memories_);
      any_ = false;
    }
    std::erase_if(memories, [&](const auto& memory) {
      const atoll_status status = plugin.table.deregister_memory(comm, memory.get());
      if (status != ATOLL_OK && status != ATOLL_ABORTED) {
        log::warn("communicator {}: cannot deregister memory that the user has freed: {}", name,
                  last_error(plugin, comm));
      }
      return status == ATOLL_OK;
    });
    if (memories.empty()) return;
    // The remaining memory is kept until the next attempt, or until the backend is closed.
    const std::lock_guard lock(mutex_);
    memories_.splice(memories_.end(), memories);
  }

 private:
  std::mutex mutex_;
  List memories_;
  std::atomic<bool> any_{false};
};

}  // namespace atoll_v1::atoll

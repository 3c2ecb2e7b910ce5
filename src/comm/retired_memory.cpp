#include "comm/retired_memory.hpp"

#include "core/log.hpp"

namespace atoll_v1::atoll {

void RetiredMemory::add(std::shared_ptr<void> memory) {
  const std::lock_guard lock(mutex_);
  memories_.push_back(std::move(memory));
  any_ = true;
}

void RetiredMemory::deregister(const Plugin& plugin, atoll_comm* comm, std::string_view name) {
  if (!any_.load(std::memory_order_acquire)) return;
  if (plugin.table.deregister_memory == nullptr) return;
  std::vector<std::shared_ptr<void>> memories;  // freed without the lock
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
  const std::lock_guard lock(mutex_);  // kept for the next attempt, or until closed
  memories_.insert(memories_.end(), memories.begin(), memories.end());
}

}  // namespace atoll_v1::atoll

// The memory that is registered with one communicator: its ranges, and memory that the user has
// freed but that the backend still has registered, or that operations in flight may still use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "comm/registry/registry.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {

// Lets the ranks refuse an overlap before a backend sees it: a backend finds it on one rank, while
// the other ranks already wait for that rank. Any thread may call any function.
class RegisteredRanges {
 public:
  struct Range {
    const void* memory = nullptr;
    std::size_t bytes = 0;
  };

  void add(const void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    ranges_.insert_or_assign(address(memory), bytes);
  }
  void remove(const void* memory) noexcept {
    const std::lock_guard lock(mutex_);
    ranges_.erase(address(memory));
  }
  // Returns a registered range that overlaps [memory, memory + bytes), if there is one. The ranges
  // do not overlap each other, so only the two around `memory` need a look.
  std::optional<Range> overlap(const void* memory, std::size_t bytes) const {
    const std::uintptr_t begin = address(memory);
    const std::lock_guard lock(mutex_);
    const auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first - begin < bytes) return range(next);
    if (next == ranges_.begin()) return std::nullopt;
    const auto before = std::prev(next);
    if (begin - before->first < before->second) return range(before);
    return std::nullopt;
  }

 private:
  using Map = std::map<std::uintptr_t, std::size_t>;

  static std::uintptr_t address(const void* memory) noexcept {
    return reinterpret_cast<std::uintptr_t>(memory);
  }
  static Range range(Map::const_iterator entry) {
    return {reinterpret_cast<const void*>(entry->first), entry->second};
  }

  mutable std::mutex mutex_;
  Map ranges_;  // size in bytes of each range, by its address
};

// A backend accepts one caller at a time, so retired memory waits until the communicator performs
// an operation that was called later, or until the backend is closed if the backend cannot
// deregister memory. The memory stays allocated until then: operations in flight may use it, NCCL
// requires that windows are closed before their memory is freed, and no other allocation may get
// the same address in the meantime.
class RetiredMemory {
 public:
  struct Entry {
    std::shared_ptr<void> memory{};
    std::uint64_t next = 0;  // number of the first operation that was called after the retirement
  };
  using List = std::list<Entry>;

  // Adds memory to deregister later. May be called from any thread. `memory` has one element, which
  // the caller allocated when it registered the memory: add() runs in a destructor, which must not
  // fail because an allocation fails.
  void add(List& memory) noexcept {
    const std::lock_guard lock(mutex_);
    memories_.splice(memories_.end(), memory);
    any_ = true;
  }
  // Deregisters the memory that retired before the call of operation `number`; all operations that
  // were called earlier are complete. No other thread may use `comm` during the call. `name` is the
  // name of the communicator, for the log.
  void deregister(const Plugin& plugin, atoll_comm* comm, std::string_view name,
                  std::uint64_t number) {
    if (!any_.load(std::memory_order_acquire)) return;
    const auto deregister_memory = plugin.table.deregister_memory;
    if (plugin.table.register_memory != nullptr && deregister_memory == nullptr) return;
    List memories;  // memory to free after the lock is released
    {
      const std::lock_guard lock(mutex_);
      for (auto entry = memories_.begin(); entry != memories_.end();) {
        const auto current = entry++;
        if (current->next <= number) memories.splice(memories.end(), memories_, current);
      }
      any_ = !memories_.empty();
    }
    if (deregister_memory == nullptr) return;
    std::erase_if(memories, [&](const Entry& entry) {
      const atoll_status status = deregister_memory(comm, entry.memory.get());
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
    any_ = true;
  }

  // Frees all retired memory. Only for groups that register no memory, while nothing is in flight.
  void free() {
    if (!any_.load(std::memory_order_acquire)) return;
    List memories;
    {
      const std::lock_guard lock(mutex_);
      memories.swap(memories_);
      any_ = false;
    }
  }

 private:
  std::mutex mutex_;
  List memories_;
  std::atomic<bool> any_{false};
};

}  // namespace atoll_v1::atoll

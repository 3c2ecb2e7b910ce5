// Memory of allocateTensor(). Registering memory costs a system call and messages to other ranks,
// so freed memory is kept for the next tensor.
#pragma once

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "atoll_handles.hpp"

namespace atoll_torch {

// Free buffers by size. A tensor keeps the pool alive.
class MemoryPool {
 public:
  std::shared_ptr<atoll_buffer> take(const atoll_device* device, std::size_t bytes,
                                     atoll_communicator* comm,
                                     const std::shared_ptr<MemoryPool>& self) {
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
    Handle<atoll_buffer> buffer;
    {
      const std::lock_guard lock(mutex_);
      auto& free = free_[size];
      if (!free.empty()) {
        buffer = std::move(free.back());
        free.pop_back();
      }
    }
    if (!buffer) {
      atoll_communicator* const comms[] = {comm};
      buffer = make<atoll_buffer>(atoll_buffer_open_alone, device, size,
                                  static_cast<atoll_communicator* const*>(comms), std::size_t{1});
    }
    return {buffer.release(), [self, size](atoll_buffer* used) {
              const std::lock_guard lock(self->mutex_);
              self->free_[size].emplace_back(used);
            }};
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    free_.clear();
  }

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<Handle<atoll_buffer>>> free_;
};

}  // namespace atoll_torch

// Memory that other processes of the host can map. Each allocation is an anonymous memory file: it
// lives as long as a process maps it and leaves no name behind.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "collectives/descriptor.hpp"

namespace atoll_collectives {

// Owns a mapped range and unmaps it on destruction.
class Mapping {
 public:
  Mapping() = default;
  // Maps `bytes` of `fd` from `offset`, which need not be aligned, and makes all pages present.
  Mapping(int fd, std::size_t offset, std::size_t bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const noexcept { return data_; }

 private:
  void* reserved_ = nullptr;  // reserved address range that contains the mapped pages
  std::size_t length_ = 0;
  std::byte* data_ = nullptr;
};

// The allocations of this process. They are found by address, because core frees and registers
// memory by address alone.
namespace shared_memory {

// Zeroed, page-aligned, and backed by memory at once. Throws Error(ATOLL_OUT_OF_MEMORY).
void* allocate(std::size_t bytes);
// Throws Error(ATOLL_NOT_FOUND) for an address that allocate() did not return.
void free(void* memory);

struct Range {
  std::shared_ptr<const Descriptor> file;
  std::size_t offset;
};
// The file range of [memory, memory + bytes), if the range is part of one allocation.
std::optional<Range> find(const void* memory, std::size_t bytes);

}  // namespace shared_memory
}  // namespace atoll_collectives

// Allocates memory that other processes of the host can map. Each allocation is an anonymous memory
// file (memfd), which exists as long as a process maps it and has no name that could be left
// behind.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "core/descriptor.hpp"

namespace atoll_collectives {

using atoll_v1::atoll::net::Fd;

// Owns a mapped range and unmaps it on destruction.
class Mapping {
 public:
  Mapping() = default;
  // Maps `bytes` bytes of `fd` from `offset` and populates all pages. `offset` need not be aligned.
  Mapping(int fd, std::size_t offset, std::size_t bytes);

  std::byte* data() const noexcept { return data_; }

 private:
  struct Unmap {
    std::size_t length;
    void operator()(void* range) const noexcept;
  };
  std::unique_ptr<void, Unmap> reserved_;  // address range that contains the mapped pages
  std::byte* data_ = nullptr;
};

// Sets the size of the file `fd` and reserves memory for all of it. Returns 0 or an errno value.
int reserve_file(int fd, std::size_t bytes) noexcept;

// The shared memory allocations of this process. They are looked up by address, because libatoll
// passes only an address when it frees or registers memory.
namespace shared_memory {

// Allocates memory that is zeroed, page-aligned, and backed by physical pages at once. Throws
// Error(ATOLL_OUT_OF_MEMORY).
void* allocate(std::size_t bytes);
// Frees memory that allocate() returned. Throws Error(ATOLL_NOT_FOUND) for any other address.
void free(void* memory);

// A range of the anonymous memory file (memfd) that backs an allocation.
struct Range {
  std::shared_ptr<const Fd> file;
  std::size_t offset;
};
// Returns the file range that backs [memory, memory + bytes), or nullopt unless a single allocation
// contains all of it.
std::optional<Range> find(const void* memory, std::size_t bytes);

}  // namespace shared_memory
}  // namespace atoll_collectives

// Memory that other processes of the host can map: each allocation is a memory file of its own,
// which lives as long as somebody maps it and has no name that could stay behind.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "collectives/descriptor.hpp"

namespace atoll_sdk {

// A range that is mapped here, unmapped with the handle.
class Mapping {
 public:
  Mapping() = default;
  // `bytes` of `fd` from `offset` on, which need not be aligned; all pages are made present.
  Mapping(int fd, std::size_t offset, std::size_t bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const noexcept { return data_; }

 private:
  void* reserved_ = nullptr;  // the pages, among addresses that nobody uses
  std::size_t length_ = 0;
  std::byte* data_ = nullptr;
};

// What the allocations of this process need to be found by address: a plugin is asked to free and
// to register by address alone.
namespace shared_memory {

// Filled with zeros, aligned to a page, reserved at once. Throws Error(ATOLL_OUT_OF_MEMORY).
void* allocate(std::size_t bytes);
// Throws Error(ATOLL_NOT_FOUND) for an address that allocate() did not return.
void free(void* memory);

struct Range {
  std::shared_ptr<const Descriptor> file;
  std::size_t offset;
};
// Where [memory, memory + bytes) lies, if it is part of one allocation.
std::optional<Range> find(const void* memory, std::size_t bytes);

}  // namespace shared_memory
}  // namespace atoll_sdk

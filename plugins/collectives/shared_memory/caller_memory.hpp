// Finds the file that backs memory which the caller allocated, so that other processes can map the
// same pages.
#pragma once

#include <cstddef>
#include <optional>

#include "collectives/shared_memory/memory_file.hpp"

namespace atoll_collectives::shared_memory {

// Returns the range of the file that backs [memory, memory + bytes). Memory of allocate() has one,
// and so has a writable shared mapping (mmap with MAP_SHARED) of a regular file that this process
// has open, or whose name it may open: a memfd, a file in /dev/shm. Returns nullopt for all other
// memory, such as that of malloc: its pages belong to this process only.
std::optional<Range> find_file(const void* memory, std::size_t bytes);

}  // namespace atoll_collectives::shared_memory

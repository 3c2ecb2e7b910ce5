// A second mapping of CPU memory, which the library protects while the content is not valid. An
// access at such a time causes SIGSEGV, even if it would have read the right bytes by luck.
//
// The handler of SIGSEGV (fault_handler.hpp) is installed with the first guard.
#pragma once

#include <memory>

#include "device/backend.hpp"
#include "device/checked/lifetimes.hpp"

namespace atoll_v1::atoll::checked {

// Allocates CPU memory that can be mapped twice, aligned to a page. Throws Error(out_of_memory).
void* allocate_shared(std::size_t bytes);
void free_shared(void* data, std::size_t bytes) noexcept;

// Maps `memory` a second time, protected at first, and tells `lifetimes` about the mapping. Returns
// null if the memory is private to its mapping, as malloc() and some backends allocate it.
std::shared_ptr<GuardedMapping> map_guarded(Range memory, GuardRule rule,
                                            std::shared_ptr<Lifetimes> lifetimes);

}  // namespace atoll_v1::atoll::checked

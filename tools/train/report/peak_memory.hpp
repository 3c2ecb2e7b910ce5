#pragma once

#include <cstdint>

namespace train {

// The most memory that this process has had resident, in bytes.
std::int64_t peak_resident_bytes() noexcept;

// What it has resident now, shared pages divided by the processes that map them: gathered buffers
// of the ranks of a host count once over all of them. 0: the kernel does not tell.
std::int64_t proportional_bytes();

}  // namespace train

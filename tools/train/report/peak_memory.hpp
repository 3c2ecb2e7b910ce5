#pragma once

#include <cstdint>

namespace train {

// Peak resident memory of this process, in bytes.
std::int64_t peak_resident_bytes() noexcept;

// Current resident memory of this process in bytes, with shared pages divided among the processes
// that map them: a buffer that ranks share counts once in total. 0 if the kernel does not report
// it.
std::int64_t proportional_bytes();

}  // namespace train

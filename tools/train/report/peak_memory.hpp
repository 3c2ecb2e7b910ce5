#pragma once

#include <cstdint>

namespace train {

// The most memory that this process has had resident, in bytes.
std::int64_t peak_resident_bytes() noexcept;

}  // namespace train

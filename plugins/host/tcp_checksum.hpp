// CRC-32C (Castagnoli), as iSCSI and ext4 use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace atoll_host_backend {

// Returns the CRC-32C of `data`. Uses the processor's instruction if there is one.
std::uint32_t crc32c(std::span<const std::byte> data) noexcept;

// Returns the same as crc32c() without the instruction, for other processors and for tests.
std::uint32_t crc32c_portable(std::span<const std::byte> data) noexcept;

}  // namespace atoll_host_backend

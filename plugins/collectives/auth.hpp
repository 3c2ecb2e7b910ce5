// Primitives to prove knowledge of the job's secret without sending it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace atoll_collectives {

using Digest = std::array<std::uint8_t, 32>;

// SHA-256 (FIPS 180-4).
Digest sha256(std::span<const std::uint8_t> message);
Digest sha256(std::string_view message);

// HMAC-SHA-256 (RFC 2104).
Digest hmac(std::string_view key, std::span<const std::uint8_t> message);

// Compares in constant time.
bool equal(const Digest& a, const Digest& b) noexcept;

// Random bytes from the kernel. Throws Error(ATOLL_IO).
Digest random_digest();

}  // namespace atoll_collectives

// Proof that a peer knows the job's secret, without sending the secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace atoll_sdk {

using Digest = std::array<std::uint8_t, 32>;

// SHA-256 (FIPS 180-4).
Digest sha256(std::span<const std::uint8_t> message);
Digest sha256(std::string_view message);

// HMAC-SHA-256 (RFC 2104).
Digest hmac(std::string_view key, std::span<const std::uint8_t> message);

// In a time that does not depend on where they differ.
bool equal(const Digest& a, const Digest& b) noexcept;

// From the kernel's generator. Throws Error(ATOLL_IO).
Digest random_digest();

}  // namespace atoll_sdk

// Cryptographic functions of libsodium, with which a process proves that it knows the job's secret
// without sending the secret.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace atoll_collectives {

using Digest = std::array<std::uint8_t, 32>;

// Returns the SHA-256 hash of `message` (FIPS 180-4).
Digest sha256(std::string_view message);

// Returns the HMAC-SHA-256 of `message` under `key` (RFC 2104).
Digest hmac(std::string_view key, std::span<const std::uint8_t> message);

// Compares two digests in constant time, so that the time does not reveal where they differ.
bool equal(const Digest& a, const Digest& b) noexcept;

// Returns 32 random bytes. Throws Error(ATOLL_INTERNAL) if the kernel provides none.
Digest random_digest();

}  // namespace atoll_collectives

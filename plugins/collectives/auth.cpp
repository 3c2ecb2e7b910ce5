#include "collectives/auth.hpp"

#include <sodium.h>

#include "sdk/backend.hpp"

namespace atoll_collectives {
namespace {

static_assert(sizeof(Digest) == crypto_hash_sha256_BYTES);
static_assert(sizeof(Digest) == crypto_auth_hmacsha256_BYTES);

const unsigned char* octets(std::string_view text) noexcept {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

Digest sha256(std::string_view message) {
  Digest digest{};
  ::crypto_hash_sha256(digest.data(), octets(message), message.size());
  return digest;
}

Digest hmac(std::string_view key, std::span<const std::uint8_t> message) {
  Digest digest{};
  crypto_auth_hmacsha256_state state;
  ::crypto_auth_hmacsha256_init(&state, octets(key), key.size());
  ::crypto_auth_hmacsha256_update(&state, message.data(), message.size());
  ::crypto_auth_hmacsha256_final(&state, digest.data());
  ::sodium_memzero(&state, sizeof state);
  return digest;
}

bool equal(const Digest& a, const Digest& b) noexcept {
  return ::sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Digest random_digest() {
  static const bool is_ready = ::sodium_init() >= 0;
  if (!is_ready) {
    throw atoll_sdk::Error(ATOLL_INTERNAL, "libsodium cannot start: no random numbers");
  }
  Digest digest{};
  ::randombytes_buf(digest.data(), digest.size());
  return digest;
}

}  // namespace atoll_collectives

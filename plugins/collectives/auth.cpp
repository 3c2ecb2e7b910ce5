#include "collectives/auth.hpp"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <vector>

#include "sdk/guard.hpp"

namespace atoll_collectives {

using namespace atoll_sdk;

namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::array<std::uint64_t, 64> first_primes() {
  std::array<std::uint64_t, 64> primes{};
  std::size_t found = 0;
  for (std::uint64_t candidate = 2; found < primes.size(); ++candidate) {
    bool prime = true;
    for (std::size_t i = 0; i < found; ++i) prime = prime && candidate % primes[i] != 0;
    if (prime) primes[found++] = candidate;
  }
  return primes;
}

// Returns the first 32 fractional bits of the `degree`-th root of `prime`. FIPS 180-4 defines the
// constants of SHA-256 this way: section 4.2.2 uses cube roots, section 5.3.3 square roots.
constexpr std::uint32_t root_fraction(std::uint64_t prime, int degree) {
  const Wide target = Wide{prime} << (32 * degree);
  Wide root = 0;
  for (int bit = 37; bit >= 0; --bit) {
    const Wide trial = root | (Wide{1} << bit);
    const Wide power = degree == 2 ? trial * trial : trial * trial * trial;
    if (power <= target) root = trial;
  }
  return static_cast<std::uint32_t>(root);
}

template <std::size_t N>
constexpr std::array<std::uint32_t, N> root_fractions(int degree) {
  std::array<std::uint32_t, N> result{};
  const auto primes = first_primes();
  for (std::size_t i = 0; i < N; ++i) result[i] = root_fraction(primes[i], degree);
  return result;
}

constexpr auto round_constants = root_fractions<64>(3);
constexpr auto initial_state = root_fractions<8>(2);
static_assert(round_constants[0] == 0x428a2f98 && initial_state[0] == 0x6a09e667);

using State = std::array<std::uint32_t, 8>;
constexpr std::size_t block_bytes = 64;

void absorb(State& state, std::span<const std::uint8_t> block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t b = 0; b < 4; ++b) w[i] = (w[i] << 8) | block[4 * i + b];
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const auto a = w[i - 15];
    const auto b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  State s = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const auto sum1 = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const auto choose = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const auto t1 = s[7] + sum1 + choose + round_constants[i] + w[i];
    const auto sum0 = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const auto majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    s = {t1 + sum0 + majority, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
  }
  for (std::size_t i = 0; i < 8; ++i) state[i] += s[i];
}

std::span<const std::uint8_t> as_octets(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

Digest sha256(std::span<const std::uint8_t> message) {
  State state = initial_state;
  std::size_t at = 0;
  for (; message.size() - at >= block_bytes; at += block_bytes) {
    absorb(state, message.subspan(at, block_bytes));
  }
  std::vector<std::uint8_t> tail(message.begin() + static_cast<std::ptrdiff_t>(at), message.end());
  tail.push_back(0x80);
  while (tail.size() % block_bytes != block_bytes - 8) tail.push_back(0);
  const std::uint64_t bits = std::uint64_t{message.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) {
    tail.push_back(static_cast<std::uint8_t>(bits >> shift));
  }
  for (std::size_t i = 0; i < tail.size(); i += block_bytes) {
    absorb(state, std::span(tail).subspan(i, block_bytes));
  }
  Digest digest{};
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest sha256(std::string_view message) { return sha256(as_octets(message)); }

Digest hmac(std::string_view key, std::span<const std::uint8_t> message) {
  std::array<std::uint8_t, block_bytes> padded{};
  if (key.size() > block_bytes) {
    const Digest shorter = sha256(key);
    std::copy(shorter.begin(), shorter.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  std::vector<std::uint8_t> inner;
  for (const auto octet : padded) inner.push_back(static_cast<std::uint8_t>(octet ^ 0x36));
  inner.insert(inner.end(), message.begin(), message.end());
  const Digest digest = sha256(inner);
  std::vector<std::uint8_t> outer;
  for (const auto octet : padded) outer.push_back(static_cast<std::uint8_t>(octet ^ 0x5c));
  outer.insert(outer.end(), digest.begin(), digest.end());
  return sha256(outer);
}

bool equal(const Digest& a, const Digest& b) noexcept {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

Digest random_digest() {
  Digest digest{};
  std::size_t have = 0;
  while (have < digest.size()) {
    const ssize_t n = ::getrandom(digest.data() + have, digest.size() - have, 0);
    if (n < 0 && errno != EINTR) throw system_error("getrandom", errno);
    if (n > 0) have += static_cast<std::size_t>(n);
  }
  return digest;
}

}  // namespace atoll_collectives

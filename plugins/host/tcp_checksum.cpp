#include "host/tcp_checksum.hpp"

#include <array>
#include <cstring>

namespace atoll_host_backend {
namespace {

constexpr std::uint32_t polynomial = 0x82F63B78;  // polynomial of CRC-32C with its bits reversed

constexpr auto table = [] {
  std::array<std::uint32_t, 256> result{};
  for (std::uint32_t i = 0; i < result.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
    result[i] = value;
  }
  return result;
}();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(
    std::span<const std::byte> data) noexcept {
  std::uint64_t crc = 0xFFFFFFFF;
  const std::byte* at = data.data();
  std::size_t left = data.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    crc = __builtin_ia32_crc32di(crc, word);
  }
  auto narrow = static_cast<std::uint32_t>(crc);
  for (; left > 0; --left, ++at) {
    narrow = __builtin_ia32_crc32qi(narrow, static_cast<unsigned char>(*at));
  }
  return ~narrow;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::byte> data) noexcept {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::byte octet : data) {
    crc = (crc >> 8) ^ table[(crc ^ static_cast<std::uint32_t>(octet)) & 0xFF];
  }
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> data) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_sse42(data);
#endif
  return crc32c_portable(data);
}

}  // namespace atoll_host_backend

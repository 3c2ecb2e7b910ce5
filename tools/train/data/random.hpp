// Counter-based random numbers: a value depends only on (seed, stream, index, counter), so any rank
// can compute any value in any order.
#pragma once

#include <cstdint>

namespace train {

// Streams in use. Streams of the same seed are independent.
enum class RandomStream : std::uint64_t {
  shuffle = 1,
  synthetic_tokens = 2,
  copy_tokens = 3,
  demo_records = 4,
  mixture = 5,
  evaluation = 6,
};

// A bijection of 64-bit values in which every input bit affects every output bit (Stafford's mixer
// 13).
constexpr std::uint64_t scramble(std::uint64_t value) noexcept {
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9ULL;
  value ^= value >> 27;
  value *= 0x94d049bb133111ebULL;
  value ^= value >> 31;
  return value;
}

struct RandomKey {
  std::uint64_t seed = 0;
  RandomStream stream = RandomStream::shuffle;
  std::int64_t index = 0;  // number of the epoch or of the sample, depending on the stream
};

class CounterRandom {
 public:
  explicit constexpr CounterRandom(const RandomKey& key) noexcept
      : key_(scramble(scramble(scramble(key.seed + golden) +
                               static_cast<std::uint64_t>(key.stream) * golden) +
                      static_cast<std::uint64_t>(key.index) * golden)) {}

  constexpr std::uint64_t bits(std::uint64_t counter) const noexcept {
    return scramble(key_ + (counter + 1) * golden);
  }

  // Uniform in [0, bound), bound > 0. The modulo bias is below bound / 2^64.
  constexpr std::uint64_t below(std::uint64_t counter, std::uint64_t bound) const noexcept {
    return bits(counter) % bound;
  }

 private:
  static constexpr std::uint64_t golden = 0x9e3779b97f4a7c15ULL;
  std::uint64_t key_;
};

}  // namespace train

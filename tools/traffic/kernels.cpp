// Highway compiles this file for each instruction set and chooses the best one at run time. The
// kernels read and write every array once, all arrays in lockstep, without waiting.
#include "traffic/kernels.hpp"

#include <array>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "traffic/kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace traffic::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <Stores stores, class D>
void store(hn::Vec<D> v, D d, hn::TFromD<D>* to) {
  if constexpr (stores == Stores::streaming) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}

template <Stores stores>
void copy_with(std::byte* to, const std::byte* from, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto* out = reinterpret_cast<std::uint8_t*>(to);
  const auto* in = reinterpret_cast<const std::uint8_t*>(from);
  std::size_t at = 0;
  for (; at + 4 * lanes <= bytes; at += 4 * lanes) {
    const auto a = hn::LoadU(d, in + at);
    const auto b = hn::LoadU(d, in + at + lanes);
    const auto c = hn::LoadU(d, in + at + 2 * lanes);
    const auto e = hn::LoadU(d, in + at + 3 * lanes);
    store<stores>(a, d, out + at);
    store<stores>(b, d, out + at + lanes);
    store<stores>(c, d, out + at + 2 * lanes);
    store<stores>(e, d, out + at + 3 * lanes);
  }
  std::memcpy(out + at, in + at, bytes - at);
  if constexpr (stores == Stores::streaming) hwy::FlushStream();
}

// Converts vectors of words to f32 elements that can be added, and back.
struct Single {
  static constexpr std::size_t per_word = 1;
  using Floats = hn::ScalableTag<float>;
  using Words = hn::ScalableTag<std::uint32_t>;
  struct Value {
    hn::Vec<Floats> v;
  };
  static Value load(const std::uint32_t* from) {
    return {hn::BitCast(Floats(), hn::LoadU(Words(), from))};
  }
  static void add(Value& to, Value more) { to.v = hn::Add(to.v, more.v); }
  static hn::Vec<Words> pack(Value value) { return hn::BitCast(Words(), value.v); }
};

// Handles two bf16 elements in each word; the lower and the upper ones are summed separately.
struct Pair {
  static constexpr std::size_t per_word = 2;
  using Floats = hn::ScalableTag<float>;
  using Words = hn::ScalableTag<std::uint32_t>;
  struct Value {
    hn::Vec<Floats> lower, upper;
  };
  static Value load(const std::uint32_t* from) {
    const auto words = hn::LoadU(Words(), from);
    return {hn::BitCast(Floats(), hn::ShiftLeft<16>(words)),
            hn::BitCast(Floats(), hn::And(words, hn::Set(Words(), 0xffff0000U)))};
  }
  static void add(Value& to, Value more) {
    to.lower = hn::Add(to.lower, more.lower);
    to.upper = hn::Add(to.upper, more.upper);
  }
  static hn::Vec<Words> rounded(hn::Vec<Floats> v) {
    const auto bits = hn::BitCast(Words(), v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(Words(), 1));
    return hn::Add(bits, hn::Add(odd, hn::Set(Words(), 0x7fff)));
  }
  static hn::Vec<Words> pack(Value value) {
    return hn::Or(hn::ShiftRight<16>(rounded(value.lower)),
                  hn::And(rounded(value.upper), hn::Set(Words(), 0xffff0000U)));
  }
};

// `fixed` and `fixed_to` are the numbers of input and output arrays; 0 means any number. Fixed
// numbers let the compiler unroll loops over arrays and keep their addresses in registers.
template <class Format, Stores stores, std::size_t fixed, std::size_t fixed_to>
void sum_words(std::span<std::byte* const> to, std::span<const std::byte* const> from,
               std::uint64_t words) {
  const typename Format::Words d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t arrays = fixed > 0 ? fixed : from.size();
  const auto in = [&](std::size_t i) { return reinterpret_cast<const std::uint32_t*>(from[i]); };
  std::array<const std::uint32_t*, fixed> inputs;
  for (std::size_t i = 0; i < fixed; ++i) inputs[i] = in(i);
  std::array<std::uint32_t*, fixed_to> outputs;
  for (std::size_t i = 0; i < fixed_to; ++i) {
    outputs[i] = reinterpret_cast<std::uint32_t*>(to[i]);
  }
  if constexpr (fixed > 0 && fixed_to > 0) {
    for (std::uint64_t at = 0; at + lanes <= words; at += lanes) {
      auto total = Format::load(inputs[0] + at);
      for (std::size_t i = 1; i < fixed; ++i) Format::add(total, Format::load(inputs[i] + at));
      const auto result = Format::pack(total);
      for (std::size_t i = 0; i < fixed_to; ++i) store<stores>(result, d, outputs[i] + at);
    }
    if constexpr (stores == Stores::streaming) hwy::FlushStream();
    return;
  }
  for (std::uint64_t at = 0; at + lanes <= words; at += lanes) {
    auto total = Format::load(in(0) + at);
    for (std::size_t i = 1; i < arrays; ++i) Format::add(total, Format::load(in(i) + at));
    const auto result = Format::pack(total);
    for (std::byte* target : to) {
      store<stores>(result, d, reinterpret_cast<std::uint32_t*>(target) + at);
    }
  }
  if constexpr (stores == Stores::streaming) hwy::FlushStream();
}

template <class Format, Stores stores, std::size_t fixed>
void sum_from(std::span<std::byte* const> to, std::span<const std::byte* const> from,
              std::uint64_t words) {
  switch (to.size()) {
    case 1:
      return sum_words<Format, stores, fixed, 1>(to, from, words);
    case 2:
      return sum_words<Format, stores, fixed, 2>(to, from, words);
    case 4:
      return sum_words<Format, stores, fixed, 4>(to, from, words);
    default:
      return sum_words<Format, stores, fixed, 0>(to, from, words);
  }
}

template <class Format, Stores stores>
void sum_with(std::span<std::byte* const> to, std::span<const std::byte* const> from,
              std::uint64_t words) {
  switch (from.size()) {
    case 2:
      return sum_from<Format, stores, 2>(to, from, words);
    case 4:
      return sum_from<Format, stores, 4>(to, from, words);
    default:
      return sum_words<Format, stores, 0, 0>(to, from, words);
  }
}

std::size_t word_lanes() { return hn::Lanes(hn::ScalableTag<std::uint32_t>()); }

void copy_either(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores) {
  if (stores == Stores::streaming) return copy_with<Stores::streaming>(to, from, bytes);
  copy_with<Stores::cached>(to, from, bytes);
}

void sum_single(std::span<std::byte* const> to, std::span<const std::byte* const> from,
                std::uint64_t words, Stores stores) {
  if (stores == Stores::streaming) return sum_with<Single, Stores::streaming>(to, from, words);
  sum_with<Single, Stores::cached>(to, from, words);
}

void sum_pair(std::span<std::byte* const> to, std::span<const std::byte* const> from,
              std::uint64_t words, Stores stores) {
  if (stores == Stores::streaming) return sum_with<Pair, Stores::streaming>(to, from, words);
  sum_with<Pair, Stores::cached>(to, from, words);
}

}  // namespace traffic::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace traffic {

HWY_EXPORT(word_lanes);
HWY_EXPORT(copy_either);
HWY_EXPORT(sum_single);
HWY_EXPORT(sum_pair);

namespace {

constexpr std::size_t size_of(Element element) { return element == Element::f32 ? 4 : 2; }

float load_one(const std::byte* from, Element element) {
  std::uint32_t bits = 0;
  if (element == Element::f32) {
    std::memcpy(&bits, from, 4);
  } else {
    std::uint16_t half = 0;
    std::memcpy(&half, from, 2);
    bits = static_cast<std::uint32_t>(half) << 16;
  }
  return std::bit_cast<float>(bits);
}

void store_one(std::byte* to, float value, Element element) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (element == Element::f32) {
    std::memcpy(to, &bits, 4);
  } else {
    const auto half = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    std::memcpy(to, &half, 2);
  }
}

}  // namespace

void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores) {
  if (stores == Stores::library) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  HWY_DYNAMIC_DISPATCH(copy_either)(to, from, bytes, stores);
}

void sum(std::span<std::byte* const> to, std::span<const std::byte* const> from,
         std::uint64_t count, Element element, Stores stores) {
  const std::uint64_t lanes = HWY_DYNAMIC_DISPATCH(word_lanes)();
  const std::uint64_t per_word = 4 / size_of(element);
  const std::uint64_t words = count / per_word / lanes * lanes;
  if (element == Element::f32) {
    HWY_DYNAMIC_DISPATCH(sum_single)(to, from, words, stores);
  } else {
    HWY_DYNAMIC_DISPATCH(sum_pair)(to, from, words, stores);
  }
  for (std::uint64_t i = words * per_word; i < count; ++i) {
    const std::size_t at = i * size_of(element);
    float total = load_one(from[0] + at, element);
    for (std::size_t k = 1; k < from.size(); ++k) total += load_one(from[k] + at, element);
    for (std::byte* target : to) store_one(target + at, total, element);
  }
}

}  // namespace traffic
#endif

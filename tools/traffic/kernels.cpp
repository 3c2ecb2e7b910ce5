// Highway compiles this file for each instruction set and chooses the best one at run time. A
// kernel passes once over all of its arrays in lockstep, and does not synchronize with others.
#include "traffic/kernels.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

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

hn::Vec<hn::ScalableTag<std::uint32_t>> load_words(const std::byte* from, std::uint64_t word) {
  return hn::LoadU(hn::ScalableTag<std::uint32_t>(),
                   reinterpret_cast<const std::uint32_t*>(from) + word);
}

// Converts vectors of words to f32 elements that can be added, and back.
struct Single {
  using Floats = hn::ScalableTag<float>;
  using Words = hn::ScalableTag<std::uint32_t>;
  struct Value {
    hn::Vec<Floats> v;
  };
  static Value load(const std::byte* from, std::uint64_t word) {
    return {hn::BitCast(Floats(), load_words(from, word))};
  }
  static void add(Value& to, Value more) { to.v = hn::Add(to.v, more.v); }
  static hn::Vec<Words> pack(Value value) { return hn::BitCast(Words(), value.v); }
};

// Handles two bf16 elements in each word; the lower and the upper ones are summed separately.
struct Pair {
  using Floats = hn::ScalableTag<float>;
  using Words = hn::ScalableTag<std::uint32_t>;
  struct Value {
    hn::Vec<Floats> lower, upper;
  };
  static Value load(const std::byte* from, std::uint64_t word) {
    const auto words = load_words(from, word);
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

// `inputs` and `outputs` are spans or arrays. Arrays let the compiler unroll the loops over them
// and keep their addresses in registers.
template <class Format, Stores stores, class Inputs, class Outputs>
void sum_words(const Outputs outputs, const Inputs inputs, std::uint64_t words) {
  const typename Format::Words d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::uint64_t at = 0; at + lanes <= words; at += lanes) {
    auto total = Format::load(inputs[0], at);
    for (std::size_t i = 1; i < inputs.size(); ++i) Format::add(total, Format::load(inputs[i], at));
    const auto result = Format::pack(total);
    for (std::byte* target : outputs)
      store<stores>(result, d, reinterpret_cast<std::uint32_t*>(target) + at);
  }
  if constexpr (stores == Stores::streaming) hwy::FlushStream();
}

template <std::size_t size, class T>
std::array<T, size> first(std::span<T const> all) {
  std::array<T, size> some;
  std::copy_n(all.begin(), size, some.begin());
  return some;
}

// Sums of two or four inputs into one output, or into as many outputs as inputs, pass arrays to
// sum_words().
template <class Format, Stores stores, std::size_t inputs>
void sum_from(std::span<std::byte* const> to, std::span<const std::byte* const> from,
              std::uint64_t words) {
  const auto in = first<inputs, const std::byte*>(from);
  if (to.size() == 1) return sum_words<Format, stores>(first<1, std::byte*>(to), in, words);
  if (to.size() == inputs)
    return sum_words<Format, stores>(first<inputs, std::byte*>(to), in, words);
  sum_words<Format, stores>(to, in, words);
}

template <class Format, Stores stores>
void sum_with(std::span<std::byte* const> to, std::span<const std::byte* const> from,
              std::uint64_t words) {
  if (from.size() == 2) return sum_from<Format, stores, 2>(to, from, words);
  if (from.size() == 4) return sum_from<Format, stores, 4>(to, from, words);
  sum_words<Format, stores>(to, from, words);
}

std::size_t word_lanes() { return hn::Lanes(hn::ScalableTag<std::uint32_t>()); }

void copy_either(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores) {
  if (stores == Stores::streaming) return copy_with<Stores::streaming>(to, from, bytes);
  copy_with<Stores::cached>(to, from, bytes);
}

template <class Format>
void sum_format(std::span<std::byte* const> to, std::span<const std::byte* const> from,
                std::uint64_t words, Stores stores) {
  if (stores == Stores::streaming) return sum_with<Format, Stores::streaming>(to, from, words);
  sum_with<Format, Stores::cached>(to, from, words);
}

void sum_any(std::span<std::byte* const> to, std::span<const std::byte* const> from,
             std::uint64_t words, Element element, Stores stores) {
  if (element == Element::f32) return sum_format<Single>(to, from, words, stores);
  sum_format<Pair>(to, from, words, stores);
}

}  // namespace traffic::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace traffic {

HWY_EXPORT(word_lanes);
HWY_EXPORT(copy_either);
HWY_EXPORT(sum_any);

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
  const std::uint64_t bytes = count * (element == Element::f32 ? 4 : 2);
  const std::uint64_t words = bytes / 4 / lanes * lanes;
  HWY_DYNAMIC_DISPATCH(sum_any)(to, from, words, element, stores);
  // The remaining elements fill only a part of a vector, so they are summed in copies as long as a
  // vector.
  const std::uint64_t rest = bytes - 4 * words;
  if (rest == 0) return;
  std::vector<std::byte> copies(from.size() * 4 * lanes);
  std::vector<const std::byte*> inputs;
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::byte* const copy = copies.data() + i * 4 * lanes;
    std::memcpy(copy, from[i] + 4 * words, rest);
    inputs.push_back(copy);
  }
  std::byte* const result = copies.data();
  HWY_DYNAMIC_DISPATCH(sum_any)(std::span(&result, 1), inputs, lanes, element, Stores::cached);
  for (std::byte* target : to) std::memcpy(target + 4 * words, result, rest);
}

}  // namespace traffic
#endif

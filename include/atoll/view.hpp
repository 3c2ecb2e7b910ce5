// Element types, reductions and views of device memory: the arguments of collectives and kernels.
// A view carries its element type at run time.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>

#include "atoll/error.hpp"
#include "atoll/namespace.hpp"
#include "atoll/plugin_names.hpp"

namespace atoll_v1::atoll {

// Type of an element. Values equal those of `atoll_dtype` in plugin.h, are stored in files and
// never change.
enum class DType : std::int32_t {
  f32 = 0,
  bf16 = 1,
  f16 = 2,
  f64 = 3,
  i32 = 4,
  i64 = 5,
  u8 = 6,
  i8 = 7,
  u16 = 8,
  u32 = 9,
  u64 = 10,
  f8e4m3 = 11,  // collectives move the 8-bit floating-point types, but do not reduce them
  f8e5m2 = 12,
  i16 = 13,
  boolean =
      14  // "bool": one byte, 0 or 1. sum, max and bor mean or; product, min and band mean and
};

constexpr std::size_t size_of(DType dtype) noexcept {
  return atoll_abi::dtype_size(static_cast<std::int32_t>(dtype));
}

// Returns "f32", "bf16" and so on: the spelling in flags, files and logs.
constexpr std::string_view name(DType dtype) noexcept {
  return atoll_abi::dtype_name(static_cast<std::int32_t>(dtype));
}

// How a reduction combines the elements of all ranks. Values equal those of `atoll_reduce_op` in
// plugin.h.
enum class ReduceOp : std::int32_t {
  sum = 0,
  avg = 1,
  min = 2,
  max = 3,
  product = 4,
  band = 5,  // bitwise and; this and the next two: of integers and truth values only
  bor = 6,   // bitwise or
  bxor = 7   // bitwise exclusive or
};

constexpr std::string_view name(ReduceOp op) noexcept {
  return atoll_abi::op_name(static_cast<std::int32_t>(op));
}

// Parses the spelling that name(DType) returns; throws Error(invalid_argument) for any other text.
ATOLL_API DType dtype_from_name(std::string_view name);

// Storage of the 16-bit and 8-bit floating-point formats: bit patterns without arithmetic.
struct bfloat16 {
  std::uint16_t bits;
  friend bool operator==(bfloat16, bfloat16) = default;
};
struct float16 {
  std::uint16_t bits;
  friend bool operator==(float16, float16) = default;
};
struct float8_e4m3 {
  std::uint8_t bits;
  friend bool operator==(float8_e4m3, float8_e4m3) = default;
};
struct float8_e5m2 {
  std::uint8_t bits;
  friend bool operator==(float8_e5m2, float8_e5m2) = default;
};

constexpr float to_float(bfloat16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
// f16 has 10 instead of 23 bits of mantissa, and an exponent bias of 15 instead of 127.
constexpr float to_float(float16 value) noexcept {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide = exponent == 0x1f ? 0xffu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

// These functions round to nearest even. NaN stays NaN; overflow gives infinity.
constexpr bfloat16 to_bfloat16(float value) noexcept {
  // Without branches, so that loops vectorise. Rounding could turn a NaN into infinity, so a NaN is
  // truncated and made quiet.
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;
  return {static_cast<std::uint16_t>((bits & 0x7fff'ffffu) > 0x7f80'0000u ? nan : rounded)};
}
constexpr float16 to_float16(float value) noexcept {
  constexpr std::uint32_t infinity = 0x7f80'0000;
  constexpr std::uint32_t overflow = 0x477f'f000;  // 65520, midpoint of the largest f16 and 2^16
  constexpr std::uint32_t normal = 0x3880'0000;    // 2^-14, the smallest normal f16
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fff'ffffu;
  const auto result = [sign](std::uint32_t rest) {
    return float16{static_cast<std::uint16_t>(sign | rest)};
  };
  if (magnitude > infinity) return result(0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= overflow) return result(0x7c00u);
  if (magnitude < normal) {
    // Adding 0.5 aligns the unit of subnormal f16 (2^-24) with the last bit of the f32 mantissa, so
    // the addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return result(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f));
  }
  const std::uint32_t ties_to_even = 0xfff + ((magnitude >> 13) & 1);
  return result((magnitude - ((127 - 15) << 23) + ties_to_even) >> 13);
}

template <class T>
struct dtype_of_type {};
template <>
struct dtype_of_type<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct dtype_of_type<bfloat16> : std::integral_constant<DType, DType::bf16> {};
template <>
struct dtype_of_type<float16> : std::integral_constant<DType, DType::f16> {};
template <>
struct dtype_of_type<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct dtype_of_type<std::int32_t> : std::integral_constant<DType, DType::i32> {};
template <>
struct dtype_of_type<std::int64_t> : std::integral_constant<DType, DType::i64> {};
template <>
struct dtype_of_type<std::uint8_t> : std::integral_constant<DType, DType::u8> {};
template <>
struct dtype_of_type<std::int8_t> : std::integral_constant<DType, DType::i8> {};
template <>
struct dtype_of_type<std::uint16_t> : std::integral_constant<DType, DType::u16> {};
template <>
struct dtype_of_type<std::uint32_t> : std::integral_constant<DType, DType::u32> {};
template <>
struct dtype_of_type<std::uint64_t> : std::integral_constant<DType, DType::u64> {};
template <>
struct dtype_of_type<float8_e4m3> : std::integral_constant<DType, DType::f8e4m3> {};
template <>
struct dtype_of_type<float8_e5m2> : std::integral_constant<DType, DType::f8e5m2> {};
template <>
struct dtype_of_type<std::int16_t> : std::integral_constant<DType, DType::i16> {};
template <>
struct dtype_of_type<bool> : std::integral_constant<DType, DType::boolean> {};

template <class T>
concept Element = requires { dtype_of_type<std::remove_cv_t<T>>::value; };
template <class T>
constexpr DType dtype_of = dtype_of_type<std::remove_cv_t<T>>::value;

template <class R>
concept ElementRange = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
                       Element<std::ranges::range_value_t<R>>;
template <class R>
concept WritableRange =
    ElementRange<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

// Throws Error(invalid_argument), which names both types, unless they are equal.
inline void check_dtype(DType actual, DType requested) {
  if (actual == requested) return;
  throw Error(ErrorCode::invalid_argument, "a view of " + std::string(name(actual)) +
                                               " is read or written as " +
                                               std::string(name(requested)));
}

// Throws Error(invalid_argument) unless a view of `count` elements contains [first, first + n).
inline void check_part(std::uint64_t count, std::uint64_t first, std::uint64_t n) {
  if (first <= count && n <= count - first) return;
  throw Error(ErrorCode::invalid_argument,
              "part(" + std::to_string(first) + ", " + std::to_string(n) + ") of a view of " +
                  std::to_string(count) +
                  " elements ends beyond the view: pass an offset and a count, in elements, that "
                  "lie inside it");
}

// Read-only view of `count` elements of type `dtype` at `data`, an address of the device on which
// the operation runs. A view does not own its memory, which must live until the operation is done
// on its stream. Spans convert to views, and so do vectors and arrays of elements that are not
// temporaries: the memory of a temporary ends before the operation.
struct ConstView {
  const void* data = nullptr;
  std::uint64_t count = 0;
  DType dtype = DType::f32;

  constexpr ConstView() = default;
  constexpr ConstView(const void* data_, std::uint64_t count_, DType dtype_)
      : data(data_), count(count_), dtype(dtype_) {}
  template <ElementRange R>
    requires std::ranges::borrowed_range<R>
  constexpr ConstView(
      R&& range)  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
      : ConstView(std::ranges::data(range), std::ranges::size(range),
                  dtype_of<std::ranges::range_value_t<R>>) {}

  std::uint64_t bytes() const noexcept { return count * size_of(dtype); }
  // Returns a view of the elements [first, first + n). Throws Error(invalid_argument), which names
  // the three numbers, if this view does not contain them.
  ConstView part(std::uint64_t first, std::uint64_t n) const {
    check_part(count, first, n);
    return {static_cast<const std::byte*>(data) + first * size_of(dtype), n, dtype};
  }
  // Returns the address as elements of type T. Throws Error(invalid_argument) that names both types
  // unless `dtype` is the dtype of T or the view is empty.
  template <Element T>
  const T* as() const {
    if (count > 0) check_dtype(dtype, dtype_of<T>);
    return static_cast<const T*>(data);
  }
};

// A view like ConstView, but of memory that an operation writes.
struct View {
  void* data = nullptr;
  std::uint64_t count = 0;
  DType dtype = DType::f32;

  constexpr View() = default;
  constexpr View(void* data_, std::uint64_t count_, DType dtype_)
      : data(data_), count(count_), dtype(dtype_) {}
  template <WritableRange R>
    requires std::ranges::borrowed_range<R>
  constexpr View(
      R&& range)  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
      : View(std::ranges::data(range), std::ranges::size(range),
             dtype_of<std::ranges::range_value_t<R>>) {}
  constexpr operator ConstView() const noexcept { return {data, count, dtype}; }  // NOLINT

  std::uint64_t bytes() const noexcept { return count * size_of(dtype); }
  View part(std::uint64_t first, std::uint64_t n) const {
    check_part(count, first, n);
    return {static_cast<std::byte*>(data) + first * size_of(dtype), n, dtype};
  }
  template <Element T>
  T* as() const {
    if (count > 0) check_dtype(dtype, dtype_of<T>);
    return static_cast<T*>(data);
  }
};

}  // namespace atoll_v1::atoll

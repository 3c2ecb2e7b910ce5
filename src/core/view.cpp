#include "atoll/view.hpp"

#include <bit>
#include <string>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::uint32_t f32_infinity = 0x7f80'0000;
constexpr std::uint32_t f32_magnitude = 0x7fff'ffff;
// f16 has 10 instead of 23 bits of mantissa, and an exponent bias of 15 instead of 127.
constexpr int f16_shift = 13;
constexpr std::uint32_t f16_rebias = (127 - 15) << 23;
constexpr std::uint32_t f16_overflow = 0x477f'f000;  // 65520, midpoint of the largest f16 and 2^16
constexpr std::uint32_t f16_normal = 0x3880'0000;    // 2^-14, the smallest normal f16

}  // namespace

DType dtype_from_name(std::string_view name) {
  for (std::size_t dtype = 0; dtype < atoll_abi::dtypes.size(); ++dtype) {
    if (atoll_abi::dtypes[dtype].name == name) return static_cast<DType>(dtype);
  }
  std::string known;
  for (const auto& dtype : atoll_abi::dtypes) {
    if (!known.empty()) known += &dtype == &atoll_abi::dtypes.back() ? " or " : ", ";
    known += dtype.name;
  }
  throw Error(ErrorCode::invalid_argument,
              "dtype \"" + std::string(name) + "\": expected " + known);
}

float to_float(bfloat16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

bfloat16 to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // Rounding could turn a NaN into infinity, so a NaN is truncated and made quiet.
  if ((bits & f32_magnitude) > f32_infinity) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  }
  const std::uint32_t ties_to_even = 0x7fff + ((bits >> 16) & 1);
  return {static_cast<std::uint16_t>((bits + ties_to_even) >> 16)};
}

float to_float(float16 value) noexcept {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x1f) return std::bit_cast<float>(sign | f32_infinity | (mantissa << f16_shift));
  return std::bit_cast<float>(sign | ((exponent << 23) + f16_rebias) | (mantissa << f16_shift));
}

float16 to_float16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & f32_magnitude;
  const auto result = [sign](std::uint32_t rest) {
    return float16{static_cast<std::uint16_t>(sign | rest)};
  };
  if (magnitude > f32_infinity) return result(0x7e00u | ((magnitude >> f16_shift) & 0x3ffu));
  if (magnitude >= f16_overflow) return result(0x7c00u);
  if (magnitude < f16_normal) {
    // Adding 0.5 aligns the unit of subnormal f16 (2^-24) with the last bit of the f32 mantissa, so
    // the addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return result(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f));
  }
  const std::uint32_t ties_to_even = 0xfff + ((magnitude >> f16_shift) & 1);
  return result((magnitude - f16_rebias + ties_to_even) >> f16_shift);
}

}  // namespace atoll_v1::atoll

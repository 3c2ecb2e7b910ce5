// Chooses code by the type of elements, which is known only at run time, and converts elements.
#pragma once

#include <cstdint>
#include <type_traits>

#include "atoll/view.hpp"
#include "core/assert.hpp"

namespace atoll_v1::atoll {

// The type in which elements are combined: f32 for the 16-bit floating-point types, else T.
template <class T>
using Accumulator = std::conditional_t<std::is_class_v<T>, float, T>;

template <class T>
constexpr Accumulator<T> widen(T value) {
  if constexpr (std::is_class_v<T>) {
    return to_float(value);
  } else {
    return value;
  }
}

template <class To, class From>
constexpr To narrow(From value) {
  if constexpr (std::is_same_v<To, bfloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, float16>) {
    return to_float16(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

// Calls body with the std::type_identity of the type that a dtype names. Aborts the process for the
// 8-bit floating-point types, which have no arithmetic.
template <class Body>
void with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(std::type_identity<float>());
    case DType::bf16:
      return body(std::type_identity<bfloat16>());
    case DType::f16:
      return body(std::type_identity<float16>());
    case DType::f64:
      return body(std::type_identity<double>());
    case DType::i32:
      return body(std::type_identity<std::int32_t>());
    case DType::i64:
      return body(std::type_identity<std::int64_t>());
    case DType::u8:
      return body(std::type_identity<std::uint8_t>());
    case DType::i8:
      return body(std::type_identity<std::int8_t>());
    case DType::u16:
      return body(std::type_identity<std::uint16_t>());
    case DType::u32:
      return body(std::type_identity<std::uint32_t>());
    case DType::u64:
      return body(std::type_identity<std::uint64_t>());
    case DType::i16:
      return body(std::type_identity<std::int16_t>());
    case DType::boolean:
      return body(std::type_identity<std::uint8_t>());
    case DType::f8e4m3:
    case DType::f8e5m2:
      break;
  }
  ATOLL_ASSERT(false, "this element type has no arithmetic");
}

// Calls body like with_type() for floating-point types; aborts the process for other types.
template <class Body>
void with_floating_type(DType dtype, const Body& body) {
  with_type(dtype, [&]<class T>(std::type_identity<T> type) {
    if constexpr (std::is_integral_v<T>) {
      ATOLL_ASSERT(false, "floating point types only");
    } else {
      body(type);
    }
  });
}

}  // namespace atoll_v1::atoll

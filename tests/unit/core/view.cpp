#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/view.hpp"
#include "unit/error_text.hpp"

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T>
T from_bits(std::uint32_t bits) {
  return T{static_cast<std::uint16_t>(bits)};
}

// Checks rounding between neighbouring values a < b of a format. Values below the midpoint must
// round to a, values above the midpoint to b, and the midpoint itself to the neighbour with a zero
// last bit.
template <class T, class Round>
int count_misrounded(std::uint32_t first, std::uint32_t last, Round round) {
  int wrong = 0;
  for (std::uint32_t bits = first; bits < last; ++bits) {
    const T a = from_bits<T>(bits);
    const T b = from_bits<T>(bits + 1);
    const float middle = atoll::to_float(a) / 2 + atoll::to_float(b) / 2;
    const T even = (bits & 1) == 0 ? a : b;
    wrong += round(middle) != even;
    wrong += round(std::nextafter(middle, -infinity)) != a;
    wrong += round(std::nextafter(middle, infinity)) != b;
    const T negative = from_bits<T>(even.bits | 0x8000u);
    wrong += round(-middle) != negative;
  }
  return wrong;
}

}  // namespace

TEST_CASE("spans and objects that live on convert to views; temporaries that own memory do not") {
  using atoll::ConstView, atoll::View;
  using Vector = std::vector<float>;
  using Array = std::array<float, 4>;
  static_assert(std::is_convertible_v<Vector&, View> && std::is_convertible_v<Array&, View>);
  static_assert(std::is_convertible_v<float(&)[4], View>);
  static_assert(std::is_convertible_v<std::span<float>, View>);
  static_assert(!std::is_constructible_v<View, const Vector&>);
  static_assert(!std::is_constructible_v<View, std::span<const float>>);
  static_assert(!std::is_constructible_v<View, Vector>);
  static_assert(!std::is_constructible_v<View, Array>);

  static_assert(std::is_convertible_v<const Vector&, ConstView>);
  static_assert(std::is_convertible_v<Vector&, ConstView>);
  static_assert(std::is_convertible_v<const float(&)[4], ConstView>);
  static_assert(std::is_convertible_v<std::span<const float>, ConstView>);
  static_assert(std::is_convertible_v<View, ConstView>);
  static_assert(!std::is_constructible_v<ConstView, Vector>);
  static_assert(!std::is_constructible_v<ConstView, const Vector>);
  static_assert(!std::is_constructible_v<ConstView, Array>);
}

TEST_CASE("a part that ends beyond its view is an error") {
  std::vector<float> data(16);
  const atoll::View view(data);
  const atoll::ConstView read_only = view;
  const auto error = [&](std::uint64_t first, std::uint64_t n) {
    const auto text = atoll_test::error_of([&] { static_cast<void>(view.part(first, n)); });
    CHECK(text == atoll_test::error_of([&] { static_cast<void>(read_only.part(first, n)); }));
    return text;
  };
  CHECK(error(10, 6) == "no error");
  CHECK(error(16, 0) == "no error");
  CHECK(atoll_test::has(error(10, 7), "part(10, 7) of a view of 16 elements ends beyond the view"));
  CHECK(atoll_test::has(error(17, 0), "part(17, 0) of a view of 16 elements"));
  CHECK(atoll_test::has(error(1, ~std::uint64_t{0}), "part(1, 18446744073709551615) of a view"));
}

TEST_CASE("names and sizes of element types, and their parser") {
  using atoll::DType;
  struct Known {
    DType dtype;
    std::string_view name;
    std::size_t bytes;
  };
  for (const Known& known :
       {Known{DType::f32, "f32", 4}, Known{DType::bf16, "bf16", 2}, Known{DType::f16, "f16", 2},
        Known{DType::f64, "f64", 8}, Known{DType::i32, "i32", 4}, Known{DType::i64, "i64", 8},
        Known{DType::u8, "u8", 1}, Known{DType::i8, "i8", 1}, Known{DType::u16, "u16", 2},
        Known{DType::u32, "u32", 4}, Known{DType::u64, "u64", 8}, Known{DType::f8e4m3, "f8e4m3", 1},
        Known{DType::f8e5m2, "f8e5m2", 1}, Known{DType::i16, "i16", 2},
        Known{DType::boolean, "bool", 1}}) {
    CHECK(atoll::name(known.dtype) == known.name);
    CHECK(atoll::size_of(known.dtype) == known.bytes);
    CHECK(atoll::dtype_from_name(known.name) == known.dtype);
  }
  CHECK_THROWS_WITH_AS(atoll::dtype_from_name("f8"),
                       doctest::Contains("dtype \"f8\": expected f32, bf16, "), atoll::Error);
  CHECK(atoll::name(atoll::ReduceOp::product) == "product");
  CHECK(atoll::name(atoll::ReduceOp::bxor) == "bxor");
  CHECK(atoll_abi::kind_name(ATOLL_ALL_TO_ALL_V) == "all_to_all_v");
  CHECK(atoll_abi::kind_name(15) == "?");
  CHECK(atoll_abi::kind_of("reduce_scatter") == ATOLL_REDUCE_SCATTER);
  CHECK(atoll_abi::kind_of("allreduce") == -1);
}

TEST_CASE("all 65,536 bf16 and f16 survive a round trip through float; NaN stays NaN") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto b = from_bits<atoll::bfloat16>(bits);
    const auto h = from_bits<atoll::float16>(bits);
    const auto b_back = atoll::to_bfloat16(atoll::to_float(b));
    const auto h_back = atoll::to_float16(atoll::to_float(h));
    const bool b_nan = (bits & 0x7fffu) > 0x7f80u;
    const bool h_nan = (bits & 0x7fffu) > 0x7c00u;
    wrong += std::isnan(atoll::to_float(b)) != b_nan;
    wrong += std::isnan(atoll::to_float(h)) != h_nan;
    wrong += b_nan ? !std::isnan(atoll::to_float(b_back)) : b_back != b;
    wrong += h_nan ? !std::isnan(atoll::to_float(h_back)) : h_back != h;
  }
  CHECK(wrong == 0);
}

TEST_CASE("f16 values are right, including subnormal ones") {
  for (std::uint32_t bits = 0; bits < 0x7c00u; ++bits) {
    const int exponent = static_cast<int>(bits >> 10);
    const auto mantissa = static_cast<float>(bits & 0x3ffu);
    const float expected =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024.0f, exponent - 25);
    REQUIRE(atoll::to_float(from_bits<atoll::float16>(bits)) == expected);
  }
}

TEST_CASE("conversion to 16 bits rounds to nearest even") {
  const auto to_bf16 = [](float x) { return atoll::to_bfloat16(x); };
  const auto to_f16 = [](float x) { return atoll::to_float16(x); };
  CHECK(count_misrounded<atoll::bfloat16>(0, 0x7f7f, to_bf16) == 0);
  CHECK(count_misrounded<atoll::float16>(0, 0x7bff, to_f16) == 0);
}

TEST_CASE("overflow gives infinity") {
  CHECK(atoll::to_float16(65519.0f).bits == 0x7bff);
  CHECK(atoll::to_float16(65520.0f).bits == 0x7c00);
  CHECK(atoll::to_float16(-1e9f).bits == 0xfc00);
  CHECK(atoll::to_float16(infinity).bits == 0x7c00);
  CHECK(atoll::to_bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(atoll::to_bfloat16(-infinity).bits == 0xff80);
  // This NaN has set payload bits only where the conversion cuts bits off. The result must still be
  // a NaN.
  CHECK(std::isnan(atoll::to_float(atoll::to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(atoll::to_float(atoll::to_float16(std::bit_cast<float>(0x7f800001u)))));
}

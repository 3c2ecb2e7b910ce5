#include "correctness.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstring>
#include <type_traits>
#include <utility>

namespace busbw {
namespace {

using atoll::DType;

// Mixes the bits of its input; a bijection. The constants are those of a known 64-bit hash
// finalizer.
std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 33U;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33U;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33U);
}

// Contributions stay below the byte that fills results before an operation, so that unwritten
// elements show in u8 as well.
constexpr std::uint64_t largest = poison - 1;

// Range of the ranks' contributions: 0 to `most`. Only one rank in `stride` contributes to an
// element and all others contribute 0, so that sums stay exact for any number of ranks.
struct Range {
  std::uint64_t most = 1;
  std::uint64_t stride = 1;
  double unit = 1;  // every value is a multiple of `unit`
};

Range range_of(DType dtype, Op op, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  auto limit = static_cast<std::uint64_t>(std::min(exact_limit(dtype), 65'536.0));
  const bool sums = op == Op::sum || op == Op::avg || op == Op::mulsum;
  Range range;
  if (!sums) return {.most = std::min<std::uint64_t>(limit, largest)};
  if (op == Op::mulsum) limit /= 2;
  if (op == Op::avg) {  // the average of n multiples of n is a whole number
    range.unit = static_cast<double>(n);
    limit = std::max<std::uint64_t>(1, limit / n);
  }
  range.most = std::clamp<std::uint64_t>(limit / n, 1, largest);
  range.stride = (n + limit - 1) / limit;
  return range;
}

double contribution(const Range& range, int rank, std::uint64_t index, std::uint64_t seed) {
  const auto r = static_cast<std::uint64_t>(rank);
  if ((r + index + seed) % range.stride != 0) return 0;
  const std::uint64_t random = mix(index * 0x9e3779b97f4a7c15ULL + mix(r + 1) + mix(seed << 32U));
  return range.unit * static_cast<double>(random % (range.most + 1));
}

// Factors of a product are 1 or 2. At most six ranks have a 2 for an element, so that every type
// holds the product.
double factor(int rank, int ranks, std::uint64_t index, std::uint64_t seed) {
  const std::uint64_t stride = (static_cast<std::uint64_t>(ranks) + 5) / 6;
  if ((static_cast<std::uint64_t>(rank) + index + seed) % stride != 0) return 1;
  return 1 + static_cast<double>(mix(index + mix(static_cast<std::uint64_t>(rank) + seed)) % 2);
}

// If a type cannot hold sums of multiples of n, avg gets equal inputs from all ranks.
bool has_equal_inputs(DType dtype, Op op, int ranks) {
  return op == Op::avg && exact_limit(dtype) < 1.0 * ranks * ranks;
}

std::vector<double> input_values(DType dtype, Op op, int rank, int ranks, std::uint64_t seed) {
  const Range range = range_of(dtype, op, ranks);
  const bool equal = has_equal_inputs(dtype, op, ranks);
  const std::uint64_t most = exact_limit(dtype) < ranks ? 0 : 1;
  std::vector<double> values(pattern_period);
  for (std::uint64_t i = 0; i < pattern_period; ++i) {
    if (op == Op::prod) {
      values[i] = factor(rank, ranks, i, seed);
      continue;
    }
    values[i] = equal ? static_cast<double>(mix(i + seed) % (most + 1))
                      : contribution(range, rank, i, seed);
  }
  return values;
}

double combine(Op op, double sum, double value, int rank) {
  switch (op) {
    case Op::none:
    case Op::sum:
    case Op::avg:
      return sum + value;
    case Op::mulsum:
      return sum + mulsum_factor(rank) * value;
    case Op::min:
      return std::min(sum, value);
    case Op::max:
      return std::max(sum, value);
    case Op::prod:
      return sum * value;
  }
  return sum;
}

// Calls visit(T()) with the type T of C++ for an element type.
template <class Visit>
auto with_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::f32:
      return visit(float());
    case DType::bf16:
      return visit(atoll::bfloat16());
    case DType::f16:
      return visit(atoll::float16());
    case DType::f64:
      return visit(double());
    case DType::i32:
      return visit(std::int32_t());
    case DType::i64:
      return visit(std::int64_t());
    case DType::i8:
      return visit(std::int8_t());
    case DType::u16:
      return visit(std::uint16_t());
    case DType::u32:
      return visit(std::uint32_t());
    case DType::u64:
      return visit(std::uint64_t());
    case DType::u8:
    case DType::f8e4m3:  // atoll-busbw does not measure the types from here on
    case DType::f8e5m2:
    case DType::i16:
    case DType::boolean:
      break;
  }
  return visit(std::uint8_t());
}

void encode(DType dtype, double value, std::byte* at) {
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::same_as<T, atoll::bfloat16>)
      element = atoll::to_bfloat16(static_cast<float>(value));
    else if constexpr (std::same_as<T, atoll::float16>)
      element = atoll::to_float16(static_cast<float>(value));
    else
      element = static_cast<T>(value);
    std::memcpy(at, &element, sizeof element);
  });
}

double decode(DType dtype, const std::byte* at) {
  return with_type(dtype, [&](auto element) {
    std::memcpy(&element, at, sizeof element);
    if constexpr (std::is_arithmetic_v<decltype(element)>)
      return static_cast<double>(element);
    else
      return static_cast<double>(atoll::to_float(element));
  });
}

struct Precision {
  DType dtype;
  double exact;    // largest number up to which the type represents all whole numbers exactly
  double average;  // relative tolerance of averages: four units in the last place; 0 for integers
};
constexpr std::array precisions{
    Precision{DType::u8, 0xFF, 0},         Precision{DType::bf16, 0x1p8, 0x1p-6},
    Precision{DType::f16, 0x1p11, 0x1p-9}, Precision{DType::f32, 0x1p24, 0x1p-21},
    Precision{DType::i32, 0x1p31 - 1, 0},  Precision{DType::f64, 0x1p53, 0x1p-50},
    Precision{DType::i64, 0x1p53, 0},      Precision{DType::i8, 0x7F, 0},
    Precision{DType::u16, 0xFFFF, 0},      Precision{DType::u32, 0x1p32 - 1, 0},
    Precision{DType::u64, 0x1p53, 0},
};

const Precision& precision_of(DType dtype) noexcept {
  return *std::ranges::find(precisions, dtype, &Precision::dtype);
}

}  // namespace

double exact_limit(DType dtype) noexcept { return precision_of(dtype).exact; }

Pattern::Pattern(DType dtype, std::vector<double> values, double tolerance)
    : dtype_(dtype),
      values_(std::move(values)),
      encoded_(2 * pattern_period * size_of(dtype)),
      tolerance_(tolerance) {
  const std::size_t half = encoded_.size() / 2;
  for (std::size_t i = 0; i < values_.size(); ++i)
    encode(dtype_, values_[i], encoded_.data() + i * size_of(dtype_));
  std::memcpy(encoded_.data() + half, encoded_.data(), half);
}

Pattern Pattern::input(DType dtype, Op op, int rank, int ranks, std::uint64_t seed) {
  return {dtype, input_values(dtype, op, rank, ranks, seed), 0};
}

Pattern Pattern::reduced(DType dtype, Op op, int ranks, std::uint64_t seed) {
  std::vector<double> result = input_values(dtype, op, 0, ranks, seed);
  for (int r = 1; r < ranks; ++r) {
    const std::vector<double> values = input_values(dtype, op, r, ranks, seed);
    for (std::size_t i = 0; i < result.size(); ++i)
      result[i] = combine(op, result[i], values[i], r);
  }
  if (op == Op::avg)
    for (double& value : result) value /= ranks;
  return {dtype, std::move(result), op == Op::avg ? precision_of(dtype).average : 0};
}

void Pattern::fill(atoll::View data, std::uint64_t first) const {
  const std::size_t width = size_of(dtype_);
  const std::size_t period = pattern_period * width;
  auto* at = static_cast<std::byte*>(data.data);
  const std::byte* from = encoded_.data() + first % pattern_period * width;
  for (std::size_t done = 0; done < data.bytes(); done += period)
    std::memcpy(at + done, from, std::min<std::size_t>(period, data.bytes() - done));
}

bool Pattern::is_close(const std::byte* element, double wanted) const {
  const double got = decode(dtype_, element);
  return std::abs(got - wanted) <= tolerance_ * std::abs(wanted);
}

std::uint64_t Pattern::count_wrong(atoll::ConstView data, std::uint64_t first) const {
  const std::size_t width = size_of(dtype_);
  const std::size_t period = pattern_period * width;
  const auto* at = static_cast<const std::byte*>(data.data);
  const std::byte* wanted = encoded_.data() + first % pattern_period * width;
  std::uint64_t wrong = 0;
  for (std::size_t done = 0; done < data.bytes(); done += period) {
    const std::size_t bytes = std::min<std::size_t>(period, data.bytes() - done);
    if (std::memcmp(at + done, wanted, bytes) == 0) continue;
    for (std::size_t i = 0; i < bytes; i += width) {
      if (std::memcmp(at + done + i, wanted + i, width) == 0) continue;
      if (tolerance_ == 0 || !is_close(at + done + i, value(first + i / width))) ++wrong;
    }
  }
  return wrong;
}

}  // namespace busbw

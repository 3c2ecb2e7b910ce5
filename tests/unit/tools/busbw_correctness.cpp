// Tests of the data patterns with which atoll-busbw checks results: sums are exact, and every wrong
// element is found.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "correctness.hpp"

using namespace busbw;
using atoll::DType;

namespace {

bool takes(DType dtype, Op op) {
  const bool floating =
      dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
  return op != Op::mulsum || floating;
}

// Computes one expected element from the inputs of all ranks, independently of count_wrong().
double expected(Op op, int ranks, DType dtype, std::uint64_t seed, std::uint64_t index) {
  double result = Pattern::input(dtype, op, 0, ranks, seed).value(index);
  for (int r = 1; r < ranks; ++r) {
    const double value = Pattern::input(dtype, op, r, ranks, seed).value(index);
    if (op == Op::min) result = std::min(result, value);
    if (op == Op::max) result = std::max(result, value);
    if (op == Op::sum || op == Op::avg) result += value;
    if (op == Op::prod) result *= value;
    if (op == Op::mulsum) result += value * mulsum_factor(r);
  }
  return op == Op::avg ? result / ranks : result;
}

}  // namespace

TEST_CASE("sums are whole numbers within what the type holds exactly") {
  for (const DType dtype : all_dtypes) {
    for (const Op op : {Op::sum, Op::mulsum}) {
      if (!takes(dtype, op)) continue;
      for (const int ranks : {1, 2, 3, 8, 100, 300}) {
        CAPTURE(atoll::name(dtype));
        CAPTURE(ranks);
        const Pattern sums = Pattern::reduced(dtype, op, ranks, 7);
        double most = 0;
        for (std::uint64_t i = 0; i < pattern_period; ++i) most = std::max(most, sums.value(i));
        CHECK(most <= exact_limit(dtype));
        CHECK(most > 0);
      }
    }
  }
}

TEST_CASE("reduced patterns are what the inputs reduce to") {
  for (const Op op : all_ops)
    for (const int ranks : {1, 2, 5})
      for (const std::uint64_t index : {0U, 1U, 250U, 10'006U, 10'007U, 123'456U})
        CHECK(Pattern::reduced(DType::f32, op, ranks, 3).value(index) ==
              expected(op, ranks, DType::f32, 3, index));
}

TEST_CASE("averages are whole numbers where the type has room for them") {
  for (const DType dtype : all_dtypes)
    for (const int ranks : {2, 3, 5, 15})
      for (std::uint64_t i = 0; i < 100; ++i) {
        const double value = Pattern::reduced(dtype, Op::avg, ranks, 1).value(i);
        CHECK(value == static_cast<double>(static_cast<long>(value)));
      }
}

TEST_CASE("what was filled is right; each changed element is counted") {
  for (const DType dtype : all_dtypes) {
    const std::size_t width = size_of(dtype);
    const std::uint64_t count = 3 * pattern_period + 17;
    std::vector<std::byte> memory(count * width + 1);
    memory.back() = std::byte{0x55};
    const atoll::View view(memory.data(), count, dtype);
    const Pattern pattern = Pattern::input(dtype, Op::sum, 1, 4, 9);
    pattern.fill(view, 12'345);
    CHECK(memory.back() == std::byte{0x55});
    CHECK(pattern.count_wrong(view, 12'345) == 0);
    for (const std::uint64_t at : {std::uint64_t{0}, pattern_period - 1, pattern_period, count - 1})
      memory[at * width] ^= std::byte{1};
    CHECK(pattern.count_wrong(view, 12'345) == 4);
    std::memset(memory.data(), poison, count * width);
    CHECK(pattern.count_wrong(view, 12'345) == count);
  }
}

TEST_CASE("data of another rank, another offset or another operation is wrong") {
  const std::uint64_t count = 1 << 16;
  std::vector<float> values(count);
  const Pattern pattern = Pattern::input(DType::f32, Op::none, 1, 4, 9);
  pattern.fill(values);
  const std::uint64_t much = count / 2;
  CHECK(Pattern::input(DType::f32, Op::none, 2, 4, 9).count_wrong(values) > much);
  CHECK(Pattern::input(DType::f32, Op::none, 1, 4, 10).count_wrong(values) > much);
  for (const std::uint64_t offset : {1U, 2U, 4096U, 8192U, 1U << 20U})
    CHECK(pattern.count_wrong(values, offset) > much);
}

TEST_CASE("an average may be off by a rounding and by no more") {
  std::vector<float> values(100);
  const Pattern average = Pattern::reduced(DType::f32, Op::avg, 3, 1);
  average.fill(values);
  for (float& value : values) value *= 1 + 0x1p-23f;
  CHECK(average.count_wrong(values) == 0);
  for (float& value : values) value = value * (1 + 0x1p-18f) + 1e-3f;
  CHECK(average.count_wrong(values) == 100);
}

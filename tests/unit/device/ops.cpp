#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "atoll/device.hpp"
#include "device/cpu/kernels.hpp"
#include "device/exact_sum.hpp"

using atoll::bfloat16;
using atoll::DType;
using atoll::ReduceOp;
using atoll::View;
namespace cpu = atoll::cpu;

namespace {

std::vector<float> random_values(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

// Sums `parts` by the adjacent-pair tree in the simplest way, for comparison.
float tree_sum(std::vector<float> parts) {
  while (parts.size() > 1) {
    std::vector<float> next;
    for (std::size_t i = 0; i + 1 < parts.size(); i += 2) next.push_back(parts[i] + parts[i + 1]);
    if (parts.size() % 2) next.push_back(parts.back());
    parts = next;
  }
  return parts[0];
}

}  // namespace

TEST_CASE("reduce follows the adjacent-pair tree over each block, then one over the blocks") {
  const std::size_t n = 2500;  // vectors of more than two pieces of 1,024 elements
  const auto check = [&](std::size_t block, std::size_t blocks) {
    std::vector<std::vector<float>> parts;
    std::vector<const void*> pointers;
    for (std::size_t r = 0; r < block * blocks; ++r) {
      parts.push_back(random_values(n, static_cast<unsigned>(r + 1)));
      pointers.push_back(parts.back().data());
    }
    std::vector<float> sum(n);
    void* const to = sum.data();
    cpu::reduce_into({{&to, 1},
                      pointers,
                      nullptr,
                      n,
                      atoll::DType::f32,
                      ReduceOp::sum,
                      static_cast<int>(parts.size()),
                      cpu::Stores::cached,
                      blocks == 1 ? 0 : block});
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<float> sums;
      for (std::size_t b = 0; b < blocks; ++b) {
        std::vector<float> column;
        for (std::size_t r = 0; r < block; ++r) column.push_back(parts[b * block + r][i]);
        sums.push_back(tree_sum(column));
      }
      wrong += sum[i] != tree_sum(sums);
    }
    CHECK_MESSAGE(wrong == 0, blocks, " blocks of ", block);
  };
  for (std::size_t ranks = 1; ranks <= 9; ++ranks) check(ranks, 1);
  for (const std::size_t block : {1u, 2u, 3u, 5u, 6u}) {
    for (std::size_t blocks = 2; blocks <= 4; ++blocks) check(block, blocks);
  }
}

// tests/conformance checks all types and ops on a few ranks.
TEST_CASE("integers wrap, a product is rounded once, and a destination may be one of the parts") {
  const std::vector<std::uint8_t> part{200};
  const std::vector<const void*> many(256, part.data());
  std::vector<std::uint8_t> out(1);
  cpu::reduce(out, many, ReduceOp::avg);
  CHECK(out[0] == 0);  // the sum of 256 values of 200 is 0 modulo 256
  cpu::reduce(out, std::span(many).first(2), ReduceOp::avg);
  CHECK(out[0] == 72);  // 200 + 200 wraps around to 144, and the average is 144 / 2 = 72
  const std::vector<std::uint64_t> high{std::uint64_t{1} << 63}, low{2};
  std::vector<std::uint64_t> wide(1);
  cpu::reduce(wide, std::vector<const void*>{high.data(), low.data()}, ReduceOp::avg);
  CHECK(wide[0] == (std::uint64_t{1} << 62) + 1);
  const std::vector<bfloat16> third{atoll::to_bfloat16(3.0f)};
  const std::vector<bfloat16> x{atoll::to_bfloat16(1.0078125f)};
  std::vector<bfloat16> product(1);
  cpu::reduce(product, std::vector<const void*>{x.data(), x.data(), third.data()},
              ReduceOp::product);
  CHECK(product[0] == atoll::to_bfloat16(1.0078125f * 1.0078125f * 3.0f));
  // More elements than one piece and an odd number of parts, in place.
  std::vector<std::uint16_t> p(2500, 2), q(2500, 3), r(2500, 5);
  cpu::reduce(q, std::vector<const void*>{p.data(), q.data(), r.data()}, ReduceOp::product);
  CHECK(q == std::vector<std::uint16_t>(2500, 30));
}

TEST_CASE("casts round to nearest even and keep NaN and infinity") {
  std::vector<float> values = random_values(5000, 7);
  values.insert(values.end(), {0.0f, -0.0f, std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(), 1e-40f, 3.4e38f});
  std::vector<bfloat16> low(values.size());
  cpu::cast(low, values);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) wrong += low[i] != atoll::to_bfloat16(values[i]);
  CHECK(wrong == 0);
  const std::vector<float> nan{std::nanf("")};
  std::vector<bfloat16> low_nan(1);
  cpu::cast(low_nan, nan);
  CHECK(std::isnan(atoll::to_float(low_nan[0])));
  std::vector<double> wide(values.size());
  cpu::cast(wide, values);
  CHECK(wide[17] == static_cast<double>(values[17]));
}

TEST_CASE("sums of squares per block do not depend on where the blocks are summed") {
  const auto values = random_values(3 * atoll::norm_block + 100, 3);
  std::vector<double> whole(4), parts(4);
  cpu::sum_squares(whole.data(), values.data(), values.size());
  for (std::size_t block = 0; block < 4; ++block) {
    const std::size_t n = block < 3 ? atoll::norm_block : 100;
    cpu::sum_squares(&parts[block], values.data() + block * atoll::norm_block, n);
  }
  CHECK(whole == parts);
  double reference = 0;
  for (const float value : values)
    reference += static_cast<double>(value) * static_cast<double>(value);
  CHECK(whole[0] + whole[1] + whole[2] + whole[3] == doctest::Approx(reference).epsilon(1e-12));
}

TEST_CASE("exact sums equal those of a wider type, in any order") {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> exponent(-40, 40);
  for (const std::size_t n : {1u, 2u, 3u, 1000u, 100'000u}) {
    std::vector<double> values(n);
    long double wide = 0;
    for (double& value : values) value = std::exp2(exponent(random) / (n > 100 ? 4 : 1));
    // Add small values first, so that the reference has a small rounding error.
    std::sort(values.begin(), values.end());
    for (const double value : values) wide += static_cast<long double>(value);
    const double sum = atoll::exact_sum(values);
    CHECK(std::abs(sum - static_cast<double>(wide)) <= std::abs(sum) * 2.3e-16);
    std::shuffle(values.begin(), values.end(), random);
    CHECK(atoll::exact_sum(values) == sum);
  }
}

TEST_CASE("exact sums of no values, of extreme values and of non-finite values") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr double least = std::numeric_limits<double>::denorm_min();
  constexpr double most = std::numeric_limits<double>::max();
  const auto sum = [](std::vector<double> values) { return atoll::exact_sum(values); };
  CHECK(sum({}) == 0.0);
  CHECK(sum({least, least, least}) == 3 * least);
  // Two values of 2^-53 would be lost if they were added to 1.0 one by one.
  CHECK(sum({1.0, 0x1p-53, 0x1p-53}) == 1.0 + 0x1p-52);
  CHECK(sum({1.0, 0x1p-53}) == 1.0);  // a sum halfway between two values is rounded to even
  CHECK(sum({most, most}) == inf);
  CHECK(sum({most, 1.0}) == most);
  CHECK(sum({1.0, inf, 2.0}) == inf);
  CHECK(std::isnan(sum({inf, std::numeric_limits<double>::quiet_NaN(), 1.0})));
}

TEST_CASE("the clip factor") {
  const auto device = atoll::Device::cpu();
  auto stream = device.stream();
  std::vector<double> blocks{9.0, 16.0};
  std::vector<double> result(3);
  const auto factor = [&](float max_norm, float gradient_scale = 1) {
    device.ops().clip_factor(stream, result, blocks,
                             {max_norm, /*skip_nonfinite=*/true, gradient_scale});
    stream.synchronize();
    return static_cast<float>(result[1]);
  };
  CHECK(factor(1.0f) == doctest::Approx(0.2));
  CHECK(result[0] == 5.0);
  CHECK(factor(10.0f) == 1.0f);
  CHECK(factor(0.0f) == 1.0f);
  // Gradients times 1 / 4 have the norm 1.25.
  CHECK(factor(0.5f, 0.25f) == doctest::Approx(0.25 * 0.4));
  CHECK(result[0] == 1.25);
  CHECK(factor(2.0f, 0.25f) == 0.25f);
  blocks[0] = std::numeric_limits<double>::infinity();
  CHECK(result[2] == 5.0);  // number of steps with a finite gradient norm
  CHECK(std::isnan(factor(1.0f)));
  CHECK(std::isnan(factor(1.0f, 0.25f)));
  CHECK(result[2] == 5.0);
}

TEST_CASE("adamw and sgd agree with the formulas in f64") {
  const std::size_t n = 777;
  auto w = random_values(n, 1), g = random_values(n, 2);
  std::vector<float> m(n, 0.1f), v(n, 0.2f), sgd_w = w;
  const std::vector<float> w0 = w;
  const double scale = 0.5, steps = 2;
  cpu::adamw({w, g, m, v, {}, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, &steps, &scale});
  cpu::sgd({sgd_w, g, {}, 0.01f, 0.1f, &scale});
  double worst = 0, worst_sgd = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double gradient = 0.5 * static_cast<double>(g[i]), start = static_cast<double>(w0[i]);
    const double m1 = 0.9 * 0.1 + 0.1 * gradient, v1 = 0.95 * 0.2 + 0.05 * gradient * gradient;
    const double expected =
        start * (1 - 0.01 * 0.1) - 0.01 * (m1 / 0.19) / (std::sqrt(v1 / 0.0975) + 1e-8);
    worst = std::max(worst, std::abs(expected - static_cast<double>(w[i])));
    const double plain = start * (1 - 0.01 * 0.1) - 0.01 * gradient;
    worst_sgd = std::max(worst_sgd, std::abs(plain - static_cast<double>(sgd_w[i])));
  }
  CHECK(worst < 1e-6);
  CHECK(worst_sgd < 1e-6);
}

TEST_CASE("bf16 moments follow f32 with stochastic rounding and stall with rounding to nearest") {
  const std::size_t n = 4000;
  const float beta2 = 0.999f;
  // After 400 steps, the gradient drops from 1 to 0.1, so the second moment must fall from 1 to
  // 0.01.
  const auto mean_after = [&](auto moment, std::uint64_t key, int small_steps) {
    using Moment = decltype(moment);
    std::vector<float> w(n, 0.0f), g(n, 1.0f);
    std::vector<Moment> m(n, Moment{}), v(n, Moment{});
    double steps = 0;
    for (int step = 1; step <= 400 + small_steps; ++step) {
      if (step == 401) std::ranges::fill(g, 0.1f);
      steps = step;
      cpu::adamw({w, g, m, v, {}, 0.0f, 0.9f, beta2, 1e-8f, 0.0f, &steps, nullptr, key, 0});
    }
    double sum = 0;
    for (const Moment& value : v) {
      if constexpr (std::is_same_v<Moment, float>) {
        sum += static_cast<double>(value);
      } else {
        sum += static_cast<double>(atoll::to_float(value));
      }
    }
    return sum / static_cast<double>(n);
  };
  for (const int small_steps : {0, 600}) {
    const double exact = mean_after(0.0f, 0, small_steps);
    CHECK(mean_after(bfloat16{}, 17, small_steps) == doctest::Approx(exact).epsilon(0.01));
    // Half a unit in the last place of bf16 is 0.2 to 0.4 % of a value, but a step changes the
    // moment by only 0.1 %. Rounding to nearest therefore never changes the moment.
    CHECK(std::abs(mean_after(bfloat16{}, 0, small_steps) / exact - 1) > 0.2);
  }
}

TEST_CASE("initial values depend on seed, name and element only") {
  std::vector<float> whole(1000), part(300);
  cpu::fill_normal(whole.data(), whole.size(), {7, 99, 0, 0.0f, 1.0f});
  cpu::fill_normal(part.data(), part.size(), {7, 99, 500, 0.0f, 1.0f});
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 500));
  std::vector<float> other(1000);
  cpu::fill_normal(other.data(), other.size(), {7, 98, 0, 0.0f, 1.0f});
  CHECK(other != whole);

  std::vector<float> many(200'000);
  cpu::fill_normal(many.data(), many.size(), {1, 2, 0, 3.0f, 2.0f});
  double mean = 0, square = 0;
  for (const float value : many) mean += static_cast<double>(value);
  mean /= static_cast<double>(many.size());
  for (const float value : many) {
    square += (static_cast<double>(value) - mean) * (static_cast<double>(value) - mean);
  }
  CHECK(mean == doctest::Approx(3.0).epsilon(0.01));
  CHECK(std::sqrt(square / static_cast<double>(many.size())) == doctest::Approx(2.0).epsilon(0.01));
}

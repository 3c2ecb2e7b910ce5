// Compares attention and its gradients with an f64 reference and with numerical gradients.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "atoll/error.hpp"
#include "unit/train/ops_reference.hpp"

using atoll::DType;
using train::AttentionShape;
using train::cpu::Bf16Arithmetic;
using namespace train::reference;

namespace {

struct Inputs {
  Values q, k, v, dout;
  Inputs(const AttentionShape& shape, DType dtype) {
    std::mt19937_64 random(23);
    const std::int64_t tokens = shape.rows * shape.seq;
    q = rounded(random_values(random, tokens * shape.heads * shape.head_dim), dtype);
    k = rounded(random_values(random, tokens * shape.kv_heads * shape.head_dim), dtype);
    v = rounded(random_values(random, tokens * shape.kv_heads * shape.head_dim), dtype);
    dout = rounded(random_values(random, tokens * shape.heads * shape.head_dim), dtype);
  }
};

struct Outputs {
  Tensor out, lse, dq, dk, dv;
};

Outputs run(const AttentionShape& shape, const Inputs& in, DType dtype, int threads,
            const std::vector<std::int32_t>& document_positions = {},
            Bf16Arithmetic bf16 = Bf16Arithmetic::automatic) {
  const Tensor q(in.q, dtype), k(in.k, dtype), v(in.v, dtype), dout(in.dout, dtype);
  const auto queries = static_cast<std::int64_t>(in.q.size());
  const auto keys = static_cast<std::int64_t>(in.k.size());
  Outputs o{Tensor::unset(queries, dtype),
            Tensor::unset(shape.rows * shape.heads * shape.seq, DType::f32),
            Tensor::unset(queries, dtype), Tensor::unset(keys, dtype), Tensor::unset(keys, dtype)};
  const Tensor positions(document_positions);
  Bench bench(threads, bf16);
  bench.ops.run(bench.stream,
                train::AttentionForward{shape, q.view(), k.view(), v.view(), o.out.view(),
                                        o.lse.view(), positions.view()});
  bench.ops.run(bench.stream,
                train::AttentionBackward{shape, q.view(), k.view(), v.view(), o.out.view(),
                                         o.lse.view(), dout.view(), o.dq.view(), o.dk.view(),
                                         o.dv.view(), positions.view()});
  bench.done();
  return o;
}

Values part(const Values& of, std::int64_t first, std::int64_t count) {
  return {of.begin() + first, of.begin() + first + count};
}

const AttentionShape small[] = {
    {1, 1, 1, 1, 2, 0},  {2, 5, 2, 1, 6, 0},   {1, 17, 4, 2, 8, 0},   {1, 9, 3, 3, 10, 4},
    {2, 18, 2, 2, 4, 1}, {1, 20, 4, 1, 16, 7}, {1, 12, 2, 1, 34, 50},
};

// Shapes with several blocks of queries, and shapes in which blocks skip the keys outside of the
// window.
const AttentionShape large[] = {
    {1, 150, 2, 1, 32, 0},
    {2, 131, 2, 2, 20, 0},
    {1, 200, 2, 1, 16, 33},
    {1, 97, 1, 1, 128, 64},
};

}  // namespace

TEST_CASE("attention and its gradients agree with f64") {
  for (const DType dtype : compute_dtypes) {
    for (const AttentionShape& shape : small) {
      CAPTURE(atoll::name(dtype));
      CAPTURE(shape.seq);
      const Inputs in(shape, dtype);
      const Outputs o = run(shape, in, dtype, 2);
      CHECK(relative_error(o.out.values(), attention(shape, in.q, in.k, in.v)) < tolerance(dtype));
      // The bf16 backward pass uses the rounded output, so it may have twice the error. In f32 the
      // rounding error is only 1e-7.
      const double slack = dtype == DType::bf16 ? 2 : 1;
      const auto gradient = [&](const Values& of, const auto& loss) {
        return numerical_gradient(loss, of);
      };
      const Values dq = gradient(
          in.q, [&](const Values& q) { return dot(in.dout, attention(shape, q, in.k, in.v)); });
      const Values dk = gradient(
          in.k, [&](const Values& k) { return dot(in.dout, attention(shape, in.q, k, in.v)); });
      const Values dv = gradient(
          in.v, [&](const Values& v) { return dot(in.dout, attention(shape, in.q, in.k, v)); });
      // With a single visible key, dq and dk are zero except for rounding errors, so their relative
      // errors have no meaning.
      const bool one_key = shape.seq == 1 || shape.window == 1;
      if (!one_key) {
        CHECK(relative_error(o.dq.values(), dq) < slack * tolerance(dtype));
        CHECK(relative_error(o.dk.values(), dk) < slack * tolerance(dtype));
      }
      CHECK(relative_error(o.dv.values(), dv) < slack * tolerance(dtype));
    }
  }
}

TEST_CASE("attention over several blocks: output, and gradients along random directions") {
  for (const AttentionShape& shape : large) {
    CAPTURE(shape.seq);
    const Inputs in(shape, DType::f32);
    const Outputs o = run(shape, in, DType::f32, 1);
    CHECK(relative_error(o.out.values(), attention(shape, in.q, in.k, in.v)) <
          tolerance(DType::f32));
    std::mt19937_64 random(29);
    for (int direction = 0; direction < 4; ++direction) {
      const Values mq = random_values(random, static_cast<std::int64_t>(in.q.size()));
      const Values mk = random_values(random, static_cast<std::int64_t>(in.k.size()));
      const Values mv = random_values(random, static_cast<std::int64_t>(in.v.size()));
      const auto moved = [](Values base, const Values& by, double step) {
        for (std::size_t i = 0; i < base.size(); ++i) base[i] += step * by[i];
        return base;
      };
      const double slope = numerical_gradient(
          [&](const Values& step) {
            return dot(in.dout, attention(shape, moved(in.q, mq, step[0]), moved(in.k, mk, step[0]),
                                          moved(in.v, mv, step[0])));
          },
          {0.0})[0];
      const double expected =
          dot(o.dq.values(), mq) + dot(o.dk.values(), mk) + dot(o.dv.values(), mv);
      CHECK(expected == doctest::Approx(slope).epsilon(1e-4));
    }
  }
}

TEST_CASE("attention in bf16 agrees with f32 products, with each set of instructions") {
  std::vector<std::int32_t> documents;
  for (std::int32_t i = 0; i < 200; ++i) documents.push_back(i < 90 ? i : i - 90);
  for (const AttentionShape& shape : large) {
    CAPTURE(shape.seq);
    const Inputs in(shape, DType::bf16);
    const auto positions = shape.seq == 200 ? documents : std::vector<std::int32_t>();
    const Outputs exact = run(shape, in, DType::bf16, 1, positions, Bf16Arithmetic::convert);
    for (const Bf16Arithmetic bf16 : {Bf16Arithmetic::automatic, Bf16Arithmetic::avx512}) {
      const Outputs o = run(shape, in, DType::bf16, 2, positions, bf16);
      const auto near = [](const Tensor& actual, const Tensor& expected) {
        CHECK(relative_error(actual.values(), expected.values()) < tolerance(DType::bf16));
      };
      near(o.out, exact.out);
      near(o.dq, exact.dq);
      near(o.dk, exact.dk);
      near(o.dv, exact.dv);
      CHECK(relative_error(o.lse.values(), exact.lse.values()) < tolerance(DType::f32));
    }
  }
}

TEST_CASE("attention has the same bits in every run and for any number of threads") {
  for (const DType dtype : compute_dtypes) {
    for (const AttentionShape& shape : {AttentionShape{3, 77, 6, 2, 16, 0}, large[2]}) {
      const Inputs in(shape, dtype);
      const Outputs first = run(shape, in, dtype, 1);
      for (const int threads : {1, 2, 3, 7}) {
        const Outputs again = run(shape, in, dtype, threads);
        CHECK(again.out.same_bits(first.out));
        CHECK(again.dq.same_bits(first.dq));
        CHECK(again.dk.same_bits(first.dk));
        CHECK(again.dv.same_bits(first.dv));
      }
    }
  }
}

TEST_CASE("invisible keys have no influence, and NaN is not hidden") {
  const AttentionShape shape{1, 40, 1, 1, 8, 10};
  Inputs in(shape, DType::f32);
  const Values clean = run(shape, in, DType::f32, 1).out.values();
  const std::size_t poisoned = 25;
  for (std::size_t d = 0; d < 8; ++d) in.k[poisoned * 8 + d] = 1e30;
  const Values dirty = run(shape, in, DType::f32, 1).out.values();
  for (std::size_t row = 0; row < 40; ++row) {
    const bool sees = row >= poisoned && row < poisoned + 10;
    for (std::size_t d = 0; d < 8; ++d) {
      if (!sees) CHECK(dirty[row * 8 + d] == clean[row * 8 + d]);
    }
  }
  in.q[0] = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : compute_dtypes) {
    CHECK(std::isnan(run(shape, in, dtype, 1).out.values()[0]));
  }
}

TEST_CASE("documents in one row act as if each had its own row") {
  constexpr std::int64_t seq = 170;
  const std::vector<std::vector<std::int64_t>> rows = {{1, 40, 64, 30, 35}, {seq}, {100, 70}};
  std::vector<std::int32_t> positions;
  for (const auto& row : rows) {
    for (const std::int64_t length : row) {
      for (std::int32_t i = 0; i < length; ++i) positions.push_back(i);
    }
  }
  for (const DType dtype : compute_dtypes) {
    for (const std::int64_t window : {0, 33}) {
      CAPTURE(window);
      AttentionShape shape{3, seq, 4, 2, 16, window};
      const std::int64_t wide = shape.heads * shape.head_dim;
      const std::int64_t narrow = shape.kv_heads * shape.head_dim;
      const Inputs in(shape, dtype);
      const Outputs together = run(shape, in, dtype, 2, positions);
      std::int64_t first = 0;
      for (const auto& row : rows) {
        for (const std::int64_t length : row) {
          CAPTURE(first);
          Inputs own = in;
          own.q = part(in.q, first * wide, length * wide);
          own.dout = part(in.dout, first * wide, length * wide);
          own.k = part(in.k, first * narrow, length * narrow);
          own.v = part(in.v, first * narrow, length * narrow);
          const Outputs alone = run({1, length, 4, 2, 16, window}, own, dtype, 1);
          const auto same = [&](const Tensor& all, const Tensor& expected, std::int64_t width) {
            CHECK(relative_error(part(all.values(), first * width, length * width),
                                 expected.values()) < tolerance(dtype));
          };
          same(together.out, alone.out, wide);
          if (length > 1) {  // With a single key, dq and dk are zero except for rounding errors.
            same(together.dq, alone.dq, wide);
            same(together.dk, alone.dk, narrow);
          }
          same(together.dv, alone.dv, narrow);
          first += length;
        }
      }
    }
  }
}

TEST_CASE("impossible positions are refused") {
  const AttentionShape shape{2, 3, 1, 1, 2, 0};
  const Inputs in(shape, DType::f32);
  CHECK_NOTHROW(run(shape, in, DType::f32, 1, {0, 0, 1, 0, 1, 2}));
  CHECK_THROWS_WITH_AS(run(shape, in, DType::f32, 1, {0, 1, 3, 0, 1, 2}),
                       "token 2 has position 3: it must be 0 or one more than the previous token's",
                       atoll::Error);
  for (const auto& wrong : {std::vector<std::int32_t>{1, 2, 3, 0, 1, 2},
                            {0, 1, 2, 3, 4, 5},
                            {0, -1, 0, 0, 0, 0},
                            {0, 1, 2}}) {
    CHECK_THROWS_AS(run(shape, in, DType::f32, 1, wrong), atoll::Error);
  }
}

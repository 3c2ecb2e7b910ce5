// Attention against f64 and numerical gradients.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "train_ops_reference.hpp"

using atoll::DType;
using train::AttentionShape;
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

Outputs run(const AttentionShape& shape, const Inputs& in, DType dtype, int threads) {
  const Tensor q(in.q, dtype), k(in.k, dtype), v(in.v, dtype), dout(in.dout, dtype);
  const auto queries = static_cast<std::int64_t>(in.q.size());
  const auto keys = static_cast<std::int64_t>(in.k.size());
  Outputs o{Tensor::unset(queries, dtype),
            Tensor::unset(shape.rows * shape.heads * shape.seq, DType::f32),
            Tensor::unset(queries, dtype), Tensor::unset(keys, dtype), Tensor::unset(keys, dtype)};
  Bench bench(threads);
  bench.ops.attention_forward(bench.stream,
                              {shape, q.view(), k.view(), v.view(), o.out.view(), o.lse.view()});
  bench.ops.attention_backward(
      bench.stream, {shape, q.view(), k.view(), v.view(), o.out.view(), o.lse.view(), dout.view(),
                     o.dq.view(), o.dk.view(), o.dv.view()});
  bench.done();
  return o;
}

const AttentionShape small[] = {
    {1, 1, 1, 1, 2, 0},  {2, 5, 2, 1, 6, 0},   {1, 17, 4, 2, 8, 0},   {1, 9, 3, 3, 10, 4},
    {2, 18, 2, 2, 4, 1}, {1, 20, 4, 1, 16, 7}, {1, 12, 2, 1, 34, 50},
};

// Long enough for several blocks of queries, and for blocks that skip keys outside the window.
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
      // In bf16 backward meets the rounded output; f32 has the exact one to 1e-7.
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
      // A single visible key leaves nothing but rounding in dq and dk.
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

TEST_CASE("what a query does not see cannot reach it, and NaN is not hidden") {
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
  CHECK(std::isnan(run(shape, in, DType::f32, 1).out.values()[0]));
}

// Compares RMSNorm, SwiGLU, rotary embedding and cross entropy with an f64 reference and with
// numerical gradients.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "atoll/error.hpp"
#include "model/rope.hpp"
#include "unit/train/ops_reference.hpp"

using atoll::DType;
using train::RopeDirection;
using train::WriteMode;
using namespace train::reference;

namespace {

struct Size {
  std::int64_t rows, width;
};
const Size sizes[] = {{1, 1}, {3, 5}, {70, 16}, {2, 33}, {5, 64}};

void check_rms_norm(Size size, DType dtype, int threads) {
  std::mt19937_64 random(11);
  const std::int64_t count = size.rows * size.width;
  const float eps = 1e-5F;
  const Values x = rounded(random_values(random, count), dtype);
  const Values weight = rounded(random_values(random, size.width), dtype);
  const Values dy = rounded(random_values(random, count), dtype);
  const Values dx_before = rounded(random_values(random, count), dtype);
  const Tensor tx(x, dtype), tweight(weight, dtype), tdy(dy, dtype), dx(dx_before, dtype);
  const Tensor y = Tensor::unset(count, dtype), inverse = Tensor::unset(size.rows, DType::f32);
  const Tensor dweight = Tensor::unset(size.width, DType::f32);
  Bench bench(threads);
  bench.ops.run(bench.stream, train::RmsNormForward{size.width, eps, tx.view(), tweight.view(),
                                                    y.view(), inverse.view()});
  bench.ops.run(bench.stream,
                train::RmsNormBackward{size.width, tx.view(), tweight.view(), inverse.view(),
                                       tdy.view(), dx.view(), WriteMode::accumulate, dweight.view(),
                                       WriteMode::overwrite});
  bench.done();
  const auto eps64 = static_cast<double>(eps);
  CHECK(relative_error(y.values(), rms_norm(size.width, eps64, x, weight)) < tolerance(dtype));
  const Values expected_dx = numerical_gradient(
      [&](const Values& v) { return dot(dy, rms_norm(size.width, eps64, v, weight)); }, x);
  const Values expected_dweight = numerical_gradient(
      [&](const Values& v) { return dot(dy, rms_norm(size.width, eps64, x, v)); }, weight);
  CHECK(relative_error(dx.values(), plus(expected_dx, dx_before)) < tolerance(dtype));
  CHECK(relative_error(dweight.values(), expected_dweight) < tolerance(DType::f32));
  bench.ops.run(bench.stream,
                train::RmsNormBackward{size.width, tx.view(), tweight.view(), inverse.view(),
                                       tdy.view(), dx.view(), WriteMode::overwrite, dweight.view(),
                                       WriteMode::accumulate});
  bench.done();
  if (size.width > 1) CHECK(relative_error(dx.values(), expected_dx) < tolerance(dtype));
  CHECK(relative_error(dweight.values(), plus(expected_dweight, expected_dweight)) <
        tolerance(DType::f32));
}

struct EntropyRun {
  Values dlogits, total;
};

EntropyRun run_cross_entropy(const std::vector<std::int32_t>& labels, const Values& logits,
                             DType in, DType out, float scale) {
  Bench bench(2);
  const auto count = static_cast<std::int64_t>(logits.size());
  const Tensor tlabels(labels), tlogits(logits, in), total({0, 0}, DType::f64);
  const Tensor separate = Tensor::unset(count, out);
  // The gradient overwrites the logits if the input and the output have the same dtype.
  const Tensor& dlogits = in == out ? tlogits : separate;
  const auto vocab = count / static_cast<std::int64_t>(labels.size());
  bench.ops.run(bench.stream, train::CrossEntropy{vocab, tlabels.view(), tlogits.view(),
                                                  dlogits.view(), scale, total.view()});
  bench.done();
  return {dlogits.values(), total.values()};
}

}  // namespace

TEST_CASE("rms_norm and its gradients") {
  for (const DType dtype : compute_dtypes) {
    for (const Size& size : sizes) {
      CAPTURE(atoll::name(dtype));
      CAPTURE(size.width);
      check_rms_norm(size, dtype, 1);
      check_rms_norm(size, dtype, 2);
    }
  }
}

TEST_CASE("swiglu and its gradients, also in place") {
  std::mt19937_64 random(13);
  for (const DType dtype : compute_dtypes) {
    for (const std::int64_t count : {1, 7, 16, 31, 100}) {
      const Values gate = rounded(random_values(random, count, 3), dtype);
      const Values up = rounded(random_values(random, count), dtype);
      const Values dout = rounded(random_values(random, count), dtype);
      const Tensor tgate(gate, dtype), tup(up, dtype), tdout(dout, dtype);
      const Tensor out = Tensor::unset(count, dtype);
      Bench bench(2);
      bench.ops.run(bench.stream, train::SwigluForward{tgate.view(), tup.view(), out.view()});
      bench.ops.run(bench.stream, train::SwigluBackward{tgate.view(), tup.view(), tdout.view(),
                                                        tgate.view(), tup.view()});
      bench.done();
      CHECK(relative_error(out.values(), swiglu(gate, up)) < tolerance(dtype));
      const Values dgate =
          numerical_gradient([&](const Values& v) { return dot(dout, swiglu(v, up)); }, gate);
      const Values dup =
          numerical_gradient([&](const Values& v) { return dot(dout, swiglu(gate, v)); }, up);
      CHECK(relative_error(tgate.values(), dgate) < tolerance(dtype));
      CHECK(relative_error(tup.values(), dup) < tolerance(dtype));
    }
  }
}

TEST_CASE("swiglu far from zero neither overflows nor hides NaN") {
  Bench bench;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor gate({-1000, -90, 90, 1000, nan}, DType::f32), up({1, 1, 1, 1, 1}, DType::f32);
  const Tensor out = Tensor::unset(5, DType::f32);
  bench.ops.run(bench.stream, train::SwigluForward{gate.view(), up.view(), out.view()});
  bench.done();
  const Values values = out.values();
  CHECK(std::abs(values[0]) < 1e-20);
  CHECK(std::abs(values[1]) < 1e-20);
  CHECK(values[2] == 90);
  CHECK(values[3] == 1000);
  CHECK(std::isnan(values[4]));
}

TEST_CASE("a bias is added to each row, and its gradient is the sum of the rows") {
  std::mt19937_64 random(23);
  for (const DType dtype : compute_dtypes) {
    for (const std::int64_t width : {1, 7, 64, 200}) {
      for (const std::int64_t rows : {1, 3, 130}) {
        CAPTURE(width);
        const Values y = rounded(random_values(random, rows * width), dtype);
        const Values b = rounded(random_values(random, width), dtype);
        Values sums(static_cast<std::size_t>(width), 2.0), added = y;
        for (std::size_t i = 0; i < y.size(); ++i) {
          added[i] += b[i % b.size()];
          sums[i % b.size()] += y[i];
        }
        const Tensor ty(y, dtype), bias(b, dtype);
        const Tensor gradient(Values(static_cast<std::size_t>(width), 2.0), DType::f32);
        Bench bench(3);
        bench.ops.run(bench.stream, train::BiasBackward{width, ty.view(), gradient.view(),
                                                        WriteMode::accumulate});
        bench.done();
        CHECK(relative_error(gradient.values(), sums) < 1e-5);
        bench.ops.run(bench.stream,
                      train::BiasBackward{width, ty.view(), gradient.view(), WriteMode::overwrite});
        bench.ops.run(bench.stream, train::AddBias{bias.view(), ty.view()});
        bench.done();
        for (double& sum : sums) sum -= 2.0;
        CHECK(relative_error(gradient.values(), sums) < 1e-4);
        CHECK(relative_error(ty.values(), added) < tolerance(dtype));
      }
    }
  }
}

Tensor rotary_table(std::int64_t positions, std::int64_t head_dim, double theta) {
  const std::vector<float> table =
      train::rope_table({.head_dim = head_dim, .rope_theta = theta}, positions);
  return Tensor(Values(table.begin(), table.end()), DType::f32);
}

TEST_CASE("rope rotates and its inverse rotates back") {
  std::mt19937_64 random(17);
  const double theta = 10000;
  for (const DType dtype : compute_dtypes) {
    for (const std::int64_t head_dim : {2, 6, 16, 40}) {
      const std::int64_t seq = 7, heads = 3;
      const Values x = rounded(random_values(random, 2 * seq * heads * head_dim), dtype);
      const Tensor tx(x, dtype), table = rotary_table(seq + 2, head_dim, theta);
      Bench bench(2);
      bench.ops.run(bench.stream, train::Rope{seq, heads, head_dim, tx.view(), table.view(),
                                              RopeDirection::forward});
      bench.done();
      CHECK(relative_error(tx.values(), rope(seq, heads, head_dim, theta, x)) < tolerance(dtype));
      bench.ops.run(bench.stream, train::Rope{seq, heads, head_dim, tx.view(), table.view(),
                                              RopeDirection::inverse});
      bench.done();
      CHECK(relative_error(tx.values(), x) < 2 * tolerance(dtype));
    }
  }
}

TEST_CASE("cross entropy, its gradient and its count") {
  std::mt19937_64 random(19);
  const std::vector<std::int32_t> labels{0, -100, 4, 1, -1, 4};
  for (const std::int64_t vocab : {5, 16, 37}) {
    for (const DType in : compute_dtypes) {
      for (const DType out : compute_dtypes) {
        const Values logits = rounded(random_values(random, 6 * vocab, 4), in);
        const double scale = 0.25;
        const EntropyRun run =
            run_cross_entropy(labels, logits, in, out, static_cast<float>(scale));
        CHECK(run.total[0] == doctest::Approx(cross_entropy(vocab, labels, logits)).epsilon(1e-6));
        CHECK(run.total[1] == 4);
        const Values expected = numerical_gradient(
            [&](const Values& v) { return scale * cross_entropy(vocab, labels, v); }, logits);
        CHECK(relative_error(run.dlogits, expected) < tolerance(out));
      }
    }
  }
}

TEST_CASE("cross entropy of a batch without a valid label is zero, with zero gradients") {
  const Values logits{1, 2, 3, 4};
  const EntropyRun run = run_cross_entropy({-100, -100}, logits, DType::f32, DType::f32, 1);
  CHECK(run.total == Values{0, 0});
  CHECK(run.dlogits == Values(4));
}

TEST_CASE("cross entropy with large logits is exact, and NaN or infinity come out as NaN") {
  const auto total = [](const Values& logits) {
    return run_cross_entropy({0}, logits, DType::f32, DType::f32, 1).total[0];
  };
  CHECK(total({10000, 0, 0}) == 0);
  CHECK(total({0, 10000, 0}) == 10000);
  CHECK(std::isnan(total({0, std::numeric_limits<double>::quiet_NaN(), 0})));
  CHECK(std::isnan(total({0, std::numeric_limits<double>::infinity(), 0})));
}

TEST_CASE("a label outside the vocabulary is an error of the stream") {
  CHECK_THROWS_WITH_AS(run_cross_entropy({1, 3}, Values(6), DType::f32, DType::f32, 1),
                       "label 3 at position 1 is not in the vocabulary of 3", atoll::Error);
}

// Compares matrix products, sums and the embedding with an f64 reference.
#include <doctest/doctest.h>

#include "atoll/error.hpp"
#include "model/cpu/matmul.hpp"
#include "unit/train/ops_reference.hpp"

using atoll::DType;
using train::LinearsBackward;
using train::LinearsForward;
using train::LinearShape;
using train::WriteMode;
using namespace train::reference;
using train::cpu::Bf16Arithmetic;

namespace {

const LinearShape shapes[] = {{1, 1, 1},    {1, 7, 3},     {5, 16, 33},
                              {64, 48, 17}, {37, 129, 65}, {128, 192, 512}};

Values transposed(const Values& matrix, std::int64_t rows, std::int64_t columns) {
  Values turned(matrix.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      turned[static_cast<std::size_t>(c * rows + r)] =
          matrix[static_cast<std::size_t>(r * columns + c)];
    }
  }
  return turned;
}

void check_linear(Bench& bench, LinearShape shape, DType dtype) {
  std::mt19937_64 random(7);
  const Values x = rounded(random_values(random, shape.tokens * shape.in), dtype);
  const Values w = rounded(random_values(random, shape.out * shape.in), dtype);
  const Values dy = rounded(random_values(random, shape.tokens * shape.out), dtype);
  const Tensor tx(x, dtype), tw(w, dtype), tdy(dy, dtype);
  const Tensor y = Tensor::unset(shape.tokens * shape.out, dtype);
  const Tensor y32 = Tensor::unset(shape.tokens * shape.out, DType::f32);
  const Tensor dx = Tensor::unset(shape.tokens * shape.in, dtype);
  const Tensor dw = Tensor::unset(shape.out * shape.in, DType::f32);
  bench.ops.linear_forward(bench.stream, shape, tx.view(), tw.view(), y.view());
  bench.ops.linear_forward(bench.stream, shape, tx.view(), tw.view(), y32.view());
  bench.ops.linear_dgrad(bench.stream, shape, tdy.view(), tw.view(), dx.view(),
                         WriteMode::overwrite);
  bench.ops.linear_wgrad(bench.stream, shape, tdy.view(), tx.view(), dw.view(),
                         WriteMode::overwrite);
  bench.done();
  const Values expected_y = linear(shape, x, w);
  const Values expected_dx =
      linear({shape.tokens, shape.out, shape.in}, dy, transposed(w, shape.out, shape.in));
  const Values expected_dw =
      linear({shape.out, shape.tokens, shape.in}, transposed(dy, shape.tokens, shape.out),
             transposed(x, shape.tokens, shape.in));
  CHECK(relative_error(y.values(), expected_y) < tolerance(dtype));
  CHECK(relative_error(y32.values(), expected_y) < tolerance(DType::f32));
  CHECK(relative_error(dx.values(), expected_dx) < tolerance(dtype));
  CHECK(relative_error(dw.values(), expected_dw) < tolerance(DType::f32));

  bench.ops.linear_dgrad(bench.stream, shape, tdy.view(), tw.view(), dx.view(),
                         WriteMode::accumulate);
  bench.ops.linear_wgrad(bench.stream, shape, tdy.view(), tx.view(), dw.view(),
                         WriteMode::accumulate);
  bench.done();
  CHECK(relative_error(dx.values(), plus(expected_dx, expected_dx)) < 2 * tolerance(dtype));
  CHECK(relative_error(dw.values(), plus(expected_dw, expected_dw)) < tolerance(DType::f32));
}

}  // namespace

TEST_CASE("linear forward, dgrad and wgrad agree with f64") {
  for (const DType dtype : compute_dtypes) {
    for (const LinearShape& shape : shapes) {
      CAPTURE(atoll::name(dtype));
      CAPTURE(shape.tokens);
      Bench bench(2);
      check_linear(bench, shape, dtype);
    }
  }
}

TEST_CASE("bf16 products by conversion to f32 agree too") {
  for (const LinearShape& shape : shapes) {
    Bench bench(2, Bf16Arithmetic::convert);
    check_linear(bench, shape, DType::bf16);
  }
}

TEST_CASE("products have the same bits for any number of threads") {
  // The product has sums of 4,097 terms, which must not be split among threads.
  const LinearShape shape{96, 4097, 70};
  std::mt19937_64 random(3);
  for (const DType dtype : compute_dtypes) {
    CAPTURE(atoll::name(dtype));
    const Tensor x(random_values(random, shape.tokens * shape.in), dtype);
    const Tensor w(random_values(random, shape.out * shape.in), dtype);
    const auto run = [&](int threads) {
      Bench bench(threads);
      Tensor y = Tensor::unset(shape.tokens * shape.out, DType::f32);
      bench.ops.linear_forward(bench.stream, shape, x.view(), w.view(), y.view());
      bench.done();
      return y;
    };
    const Tensor one = run(1);
    for (const int threads : {1, 2, 3, 5}) {
      const Tensor several = run(threads);
      CHECK(run(threads).same_bits(several));
      if (train::cpu::bits_depend_on_threads(dtype)) {
        CHECK(relative_error(several.values(), one.values()) < 1e-6);
      } else {
        CHECK(several.same_bits(one));
      }
    }
  }
}

TEST_CASE("wrong shapes and dtypes are named") {
  Bench bench;
  const Tensor x({1, 2, 3, 4}, DType::f32), w({1, 2}, DType::f32);
  const Tensor y = Tensor::unset(2, DType::f32), low = Tensor::unset(2, DType::bf16);
  CHECK_THROWS_WITH_AS(
      bench.ops.linear_forward(bench.stream, {2, 2, 2}, x.view(), w.view(), y.view()),
      "linear_forward: weight has 2 elements, expected 4", atoll::Error);
  CHECK_THROWS_WITH_AS(
      bench.ops.linear_forward(bench.stream, {2, 2, 1}, x.view(), w.view(), low.view()),
      "linear_forward: y is bf16, expected f32", atoll::Error);
  CHECK_THROWS_AS(bench.ops.linear_forward(bench.stream, {0, 2, 1}, {}, w.view(), {}),
                  atoll::Error);
  LinearsForward::Layer layer{1, w.view(), y.view(), x.view()};
  const LinearsForward group{2, 2, x.view(), {&layer, 1}};
  CHECK_THROWS_WITH_AS(bench.ops.linears_forward(bench.stream, group),
                       "linears_forward: residual has 4 elements, expected 2", atoll::Error);
  layer.residual = y.view();
  CHECK_THROWS_WITH_AS(bench.ops.linears_forward(bench.stream, group),
                       "linears_forward: y must not alias residual", atoll::Error);
  LinearsBackward::Layer gradient{1, y.view(), w.view(), x.view(), WriteMode::overwrite};
  const LinearsBackward backward{2, 2, x.view(), x.view(), {&gradient, 1}};
  CHECK_THROWS_WITH_AS(bench.ops.linears_backward(bench.stream, backward),
                       "linears_backward: dweight has 4 elements, expected 2", atoll::Error);
}

TEST_CASE("a residual is added to the rounded product") {
  std::mt19937_64 random(1);
  for (const DType dtype : compute_dtypes) {
    for (const LinearShape& shape : shapes) {
      Bench bench(2);
      const std::int64_t count = shape.tokens * shape.out;
      const Tensor x(random_values(random, shape.tokens * shape.in), dtype);
      const Tensor w(random_values(random, shape.out * shape.in), dtype);
      const Tensor residual(random_values(random, count), dtype);
      const Tensor product = Tensor::unset(count, dtype), sum = Tensor::unset(count, dtype);
      bench.ops.linear_forward(bench.stream, shape, x.view(), w.view(), product.view());
      const LinearsForward::Layer layer{shape.out, w.view(), sum.view(), residual.view()};
      bench.ops.linears_forward(bench.stream, {shape.tokens, shape.in, x.view(), {&layer, 1}});
      bench.done();
      CHECK(sum.values() == rounded(plus(product.values(), residual.values()), dtype));
    }
  }
}

TEST_CASE("a group of linear layers has the bits of its layers alone") {
  std::mt19937_64 random(2);
  constexpr std::int64_t tokens = 5, in = 12, outs[] = {7, 3};
  for (const DType dtype : compute_dtypes) {
    Bench bench(2);
    const Tensor x(random_values(random, tokens * in), dtype);
    Tensor dx = Tensor::unset(tokens * in, dtype), dx_alone = Tensor::unset(tokens * in, dtype);
    std::vector<Tensor> w, y, dy, dw, y_alone, dw_alone;
    std::vector<LinearsForward::Layer> forward;
    std::vector<LinearsBackward::Layer> backward;
    for (const std::int64_t out : outs) {
      w.emplace_back(random_values(random, out * in), dtype);
      dy.emplace_back(random_values(random, tokens * out), dtype);
      for (auto* some : {&y, &y_alone}) some->push_back(Tensor::unset(tokens * out, dtype));
      for (auto* some : {&dw, &dw_alone}) some->push_back(Tensor::unset(out * in, DType::f32));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const LinearShape shape{tokens, in, outs[i]};
      forward.push_back({outs[i], w[i].view(), y[i].view()});
      backward.push_back({outs[i], dy[i].view(), w[i].view(), dw[i].view(), WriteMode::overwrite});
      bench.ops.linear_forward(bench.stream, shape, x.view(), w[i].view(), y_alone[i].view());
      bench.ops.linear_wgrad(bench.stream, shape, dy[i].view(), x.view(), dw_alone[i].view(),
                             WriteMode::overwrite);
      bench.ops.linear_dgrad(bench.stream, shape, dy[i].view(), w[i].view(), dx_alone.view(),
                             i == 0 ? WriteMode::overwrite : WriteMode::accumulate);
    }
    bench.ops.linears_forward(bench.stream, {tokens, in, x.view(), forward});
    bench.ops.linears_backward(bench.stream, {tokens, in, x.view(), dx.view(), backward});
    bench.done();
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(y[i].values() == y_alone[i].values());
      CHECK(dw[i].values() == dw_alone[i].values());
    }
    CHECK(dx.values() == dx_alone.values());
    // dx may overwrite x.
    for (auto& gradient : backward) gradient.dweight_mode = WriteMode::accumulate;
    bench.ops.linears_backward(bench.stream, {tokens, in, x.view(), x.view(), backward});
    bench.done();
    CHECK(x.values() == dx_alone.values());
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(dw[i].values() == plus(dw_alone[i].values(), dw_alone[i].values()));
    }
  }
}

TEST_CASE("embedding looks rows up and adds gradients of repeated tokens") {
  const std::int64_t vocab = 11, width = 37;
  const std::vector<std::int32_t> ids{3, 10, 3, 0, 3};
  std::mt19937_64 random(5);
  for (const DType dtype : compute_dtypes) {
    const Values table = rounded(random_values(random, vocab * width), dtype);
    const Values dy = rounded(random_values(random, 5 * width), dtype);
    Values expected(table.size()), looked_up;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      for (std::size_t c = 0; c < 37; ++c) {
        looked_up.push_back(table[static_cast<std::size_t>(ids[i]) * 37 + c]);
        expected[static_cast<std::size_t>(ids[i]) * 37 + c] += dy[i * 37 + c];
      }
    }
    for (const int threads : {1, 2}) {
      Bench bench(threads);
      const Tensor tokens(ids), ttable(table, dtype), tdy(dy, dtype);
      const Tensor out = Tensor::unset(5 * width, dtype);
      const Tensor dtable = Tensor::unset(vocab * width, DType::f32);
      bench.ops.run(bench.stream,
                    train::EmbeddingForward{tokens.view(), ttable.view(), out.view(), width});
      bench.ops.run(bench.stream, train::EmbeddingBackward{vocab, width, tokens.view(), tdy.view(),
                                                           dtable.view(), WriteMode::overwrite});
      bench.done();
      CHECK(out.values() == looked_up);
      CHECK(relative_error(dtable.values(), expected) < tolerance(DType::f32));
      bench.ops.run(bench.stream, train::EmbeddingBackward{vocab, width, tokens.view(), tdy.view(),
                                                           dtable.view(), WriteMode::accumulate});
      bench.done();
      CHECK(relative_error(dtable.values(), plus(expected, expected)) < tolerance(DType::f32));
    }
  }
}

TEST_CASE("a token outside the vocabulary is an error of the stream") {
  for (const std::int32_t id : {4, -1}) {
    Bench bench;
    const Tensor tokens(std::vector<std::int32_t>{0, id}), table(Values(8), DType::f32);
    const Tensor out = Tensor::unset(4, DType::f32);
    bench.ops.run(bench.stream,
                  train::EmbeddingForward{tokens.view(), table.view(), out.view(), 2});
    CHECK_THROWS_AS(bench.done(), atoll::Error);
  }
}

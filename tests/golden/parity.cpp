// Compares the handwritten forward and backward pass with the results of Hugging Face's model,
// which are in this folder's files.
#include <doctest/doctest.h>

#include <algorithm>

#include "golden_model.hpp"
#include "model/cpu/cpu_ops.hpp"
#include "model/cpu/matmul.hpp"

namespace {

using train::cpu::Bf16Arithmetic;
using train::cpu::make_ops;
using train::golden::GoldenModel;
using train::golden::relative_error;
using train::golden::Results;

const std::vector<std::string> models{
    "gqa_untied",     "window_untied", "window_tied",    "llama_scaled",  "llama_biased",
    "qwen2",          "qwen2_yarn",    "qwen3",          "qwen3_biased",  "smollm3",
    "smollm3_listed", "qwen2_tied",    "llama_adapters", "qwen3_adapters"};

GoldenModel load(const std::string& name) {
  return GoldenModel(std::filesystem::path(ATOLL_GOLDEN_DIR) / (name + ".safetensors"));
}

struct Tolerance {
  double logits, loss, gradient;
};

void check_parity(const Results& actual, const Results& expected, const Tolerance& tolerance) {
  const double logits = relative_error(actual.logits, expected.logits);
  const double loss = std::abs(actual.loss - expected.loss) / expected.loss;
  CHECK(logits <= tolerance.logits);
  CHECK(loss <= tolerance.loss);
  CHECK(actual.gradients.size() == expected.gradients.size());
  double worst = 0;
  for (const auto& [name, gradient] : expected.gradients) {
    CAPTURE(name);
    const double error = relative_error(actual.gradients.at(name), gradient);
    worst = std::max(worst, error);
    CHECK(error <= tolerance.gradient);
  }
  MESSAGE("relative errors: logits ", logits, ", loss ", loss, ", worst of ",
          expected.gradients.size(), " gradients ", worst);
}

bool same_bits(const Results& a, const Results& b) {
  return a.loss == b.loss && a.logits == b.logits && a.gradients == b.gradients;
}

// Tolerance for f32: rounding errors are about 1e-6, while a wrong term causes 1e-2 or more.
constexpr Tolerance f32_tolerance{1e-5, 1e-6, 1e-5};
// Tolerance for bf16: each rounding changes a value by up to 2^-9 = 0.2 %, two layers round about
// 20 times, and the weights of these models are far larger than trained weights.
// The gradient of a key's bias is a sum whose terms almost cancel; transformers in bf16 has its
// largest error there too, 0.046 in these models.
constexpr Tolerance bf16_tolerance{0.03, 0.01, 0.07};

}  // namespace

TEST_CASE("f32 reproduces logits, loss and every gradient") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const GoldenModel model = load(name);
    const auto ops = make_ops({.threads = 1});
    check_parity(model.run(*ops, {}), model.expected(), f32_tolerance);
  }
}

TEST_CASE("bf16 stays near f32") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const GoldenModel model = load(name);
    const auto ops = make_ops({.threads = 1});
    check_parity(model.run(*ops, {.compute = atoll::DType::bf16}), model.expected(),
                 bf16_tolerance);
  }
}

TEST_CASE("bf16 by conversion to f32 stays near f32 too") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const GoldenModel model = load(name);
    const auto ops = make_ops({.threads = 2, .bf16 = Bf16Arithmetic::convert});
    check_parity(model.run(*ops, {.compute = atoll::DType::bf16}), model.expected(),
                 bf16_tolerance);
  }
}

TEST_CASE("runs, thread counts and recomputation give the same bits") {
  for (const std::string& name : models) {
    for (const atoll::DType compute : {atoll::DType::f32, atoll::DType::bf16}) {
      CAPTURE(name);
      CAPTURE(atoll::name(compute));
      const GoldenModel model = load(name);
      const auto one = make_ops({.threads = 1});
      const Results first = model.run(*one, {.compute = compute});
      CHECK(same_bits(first, model.run(*one, {.compute = compute})));
      for (const auto recompute : {train::Recompute::selective, train::Recompute::full}) {
        CHECK(same_bits(first, model.run(*one, {.compute = compute, .recompute = recompute})));
      }
      for (const int threads : {2, 3}) {
        CAPTURE(threads);
        const auto several = make_ops({.threads = threads});
        const Results other = model.run(*several, {.compute = compute});
        CHECK(same_bits(other, model.run(*several, {.compute = compute})));
        if (train::cpu::bits_depend_on_threads(compute)) {
          const bool f32 = compute == atoll::DType::f32;
          check_parity(other, first, f32 ? f32_tolerance : bf16_tolerance);
        } else {
          CHECK(same_bits(first, other));
        }
      }
    }
  }
}

TEST_CASE("the head in pieces, and gradients accumulated over two passes") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const GoldenModel model = load(name);
    const auto ops = make_ops({.threads = 1});
    for (const std::int64_t rows : {1, 7, 24, 71}) {
      CAPTURE(rows);
      check_parity(model.run(*ops, {.head_rows = rows}), model.expected(), f32_tolerance);
    }
    check_parity(model.run(*ops, {.passes = 2}), model.expected(), f32_tolerance);
  }
}

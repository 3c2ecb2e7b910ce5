// Compares conversions to fp8, and linear layers with products in fp8, with the host's arithmetic.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "both.hpp"
#include "model/cuda/cuda_ops.hpp"
#include "model/cuda/fp8.hpp"
#include "model/cuda/fp8_linears.hpp"

using atoll::bfloat16;
using atoll::DType;
using train::WriteMode;
using train::cuda::Fp8;
using train::cuda::Fp8Scale;
using namespace atoll_test;

namespace {

struct Format {
  Fp8 name;
  int mantissa, bias;
  float most;
};
constexpr Format formats[] = {{Fp8::e4m3, 3, 7, 448.0F}, {Fp8::e5m2, 2, 15, 57344.0F}};

// The value of a byte by the definition of the format.
float value_of(std::uint8_t byte, const Format& format) {
  const int exponent = (byte & 0x7f) >> format.mantissa;
  const int fraction = byte & ((1 << format.mantissa) - 1);
  const float sign = byte & 0x80 ? -1.0F : 1.0F;
  const float step = std::ldexp(1.0F, -format.mantissa);
  const bool is_e5m2 = format.name == Fp8::e5m2;
  if (is_e5m2 && exponent == 31) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity()
                         : std::numeric_limits<float>::quiet_NaN();
  }
  if (!is_e5m2 && (byte & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) {
    return sign * std::ldexp(static_cast<float>(fraction) * step, 1 - format.bias);
  }
  return sign * std::ldexp(1 + static_cast<float>(fraction) * step, exponent - format.bias);
}

using Numbers = std::array<float, 256>;

Numbers numbers_of(const Format& format) {
  Numbers numbers{};
  for (std::size_t byte = 0; byte < numbers.size(); ++byte) {
    numbers[byte] = value_of(static_cast<std::uint8_t>(byte), format);
  }
  return numbers;
}

// The number of the format that is nearest to x, and of two such numbers that with an even byte.
float nearest(float x, const Numbers& numbers) {
  float best = 0, distance = std::numeric_limits<float>::infinity();
  for (std::size_t byte = 0; byte < numbers.size(); ++byte) {
    if (!std::isfinite(numbers[byte])) continue;
    const float apart = std::abs(numbers[byte] - x);
    if (apart < distance || (apart == distance && byte % 2 == 0)) {
      best = numbers[byte], distance = apart;
    }
  }
  return best;
}

// A bf16 matrix on the GPU, its scale, and its copies in fp8 on the host.
struct Converted {
  Fp8Scale scale{};
  std::vector<std::uint8_t> plain, transposed;
};

Converted convert(Both& both, const Both::Tensor& x, std::int64_t rows, std::int64_t columns,
                  Fp8 format, bool transposes) {
  const auto count = static_cast<std::size_t>(rows * columns);
  const atoll::Buffer scale = both.gpu().allocate(sizeof(Fp8Scale));
  const atoll::Buffer plain = both.gpu().allocate(count), transposed = both.gpu().allocate(count);
  both.gpu_stream().zero(scale.data(), scale.bytes());
  auto* const on_gpu = static_cast<Fp8Scale*>(scale.data());
  const atoll::ConstView matrix = x.on_gpu();
  train::cuda::find_largest(both.stream(), {&matrix, 1}, on_gpu);
  train::cuda::to_fp8(both.stream(), {x.on_gpu(), rows, columns, format, on_gpu, plain.data(),
                                      transposes ? transposed.data() : nullptr});
  Converted seen{{}, std::vector<std::uint8_t>(count), std::vector<std::uint8_t>(count)};
  both.gpu_stream().copy(&seen.scale, scale.data(), sizeof seen.scale);
  both.gpu_stream().copy(seen.plain.data(), plain.data(), count);
  if (transposes) both.gpu_stream().copy(seen.transposed.data(), transposed.data(), count);
  both.gpu_stream().synchronize();
  return seen;
}

// Sets each element of a tensor to value(index).
template <class Value>
void fill(Both& both, const Both::Tensor& tensor, const Value& value) {
  for (std::uint64_t i = 0; i < tensor.on_host().count; ++i) {
    const float x = value(i);
    if (tensor.dtype == DType::f32) {
      tensor.on_host().as<float>()[i] = x;
    } else {
      tensor.on_host().as<bfloat16>()[i] = atoll::to_bfloat16(x);
    }
  }
  both.push(tensor);
}

float at(const Both::Tensor& tensor, std::size_t i) {
  return to_float(tensor.on_host().as<bfloat16>()[i]);
}

// Returns ops in fp8, or null on a GPU without it.
std::unique_ptr<train::Ops> make_fp8_ops(const Both& both) {
  try {
    return train::cuda::make_ops(both.gpu(), {.fp8 = true});
  } catch (const atoll::Error& error) {
    REQUIRE(error.code() == atoll::ErrorCode::unsupported);
    MESSAGE("not run: " << error.what());
    return nullptr;
  }
}

// Linear layers with small whole numbers, for which products in fp8 and in bf16 are exact, or with
// random numbers.
struct Layers {
  Layers(Both& both, std::int64_t tokens_, std::int64_t in_, std::vector<std::int64_t> outs_,
         bool exact)
      : tokens(tokens_), in(in_), outs(std::move(outs_)) {
    const auto make = [&](std::int64_t count, std::uint64_t salt, int most) {
      auto tensor = both.random(DType::bf16, count);
      if (!exact) return tensor;
      const auto values = static_cast<std::uint64_t>(2 * most + 1);
      fill(both, tensor, [&](std::uint64_t i) {
        return static_cast<float>(static_cast<int>((i * 7919 + salt * 104729) % 1009 % values) -
                                  most);
      });
      return tensor;
    };
    x = make(tokens * in, 1, 2);
    dx = both.random(DType::bf16, tokens * in);
    for (std::size_t i = 0; i < outs.size(); ++i) {
      const std::int64_t out = outs[i];
      weights.push_back(make(out * in, 2 + i, 1));
      residuals.push_back(make(tokens * out, 12 + i, 3));
      ys.push_back(both.random(DType::bf16, tokens * out));
      dys.push_back(make(tokens * out, 22 + i, 1));
      dweights.push_back(both.zeros(DType::f32, out * in));
      fill(both, dweights.back(), [](std::uint64_t j) { return static_cast<float>(j % 5); });
    }
  }

  template <class On>
  void run(train::Ops& ops, atoll::Stream& stream, const On& on, WriteMode mode) {
    std::vector<train::LinearsForward::Layer> forward;
    std::vector<train::LinearsBackward::Layer> backward;
    for (std::size_t i = 0; i < outs.size(); ++i) {
      const auto residual = i == 0 ? on(residuals[i]) : atoll::View{};
      forward.push_back({outs[i], on(weights[i]), on(ys[i]), residual});
      // The weights of the last layer are frozen if there are several.
      const bool frozen = i > 0 && i + 1 == outs.size();
      backward.push_back(
          {outs[i], on(dys[i]), on(weights[i]), on(dweights[i]), frozen ? WriteMode::none : mode});
    }
    ops.linears_forward(stream, {tokens, in, on(x), forward});
    ops.linears_backward(stream, {tokens, in, on(x), on(dx), backward});
  }
  void run_on_both(Both& both, train::Ops& ops, WriteMode mode) {
    both.run(ops, [&](train::Ops& with, atoll::Stream& stream, const auto& on) {
      run(with, stream, on, mode);
    });
    both.gpu_stream().synchronize();
    both.host_stream().synchronize();
  }
  std::vector<const Both::Tensor*> results() const {
    std::vector<const Both::Tensor*> all{&dx};
    for (std::size_t i = 0; i < outs.size(); ++i) all.insert(all.end(), {&ys[i], &dweights[i]});
    return all;
  }

  std::int64_t tokens, in;
  std::vector<std::int64_t> outs;
  Both::Tensor x, dx;
  std::vector<Both::Tensor> weights, residuals, ys, dys, dweights;
};

std::vector<double> values_on_gpu(Both& both, const Both::Tensor& tensor) {
  const std::vector<std::byte> bytes = both.bytes(tensor);
  std::vector<double> values;
  for (std::uint64_t i = 0; i < tensor.on_host().count; ++i) {
    values.push_back(Both::value(bytes.data(), tensor.dtype, i));
  }
  return values;
}

auto not_numbers(Both& both, const Both::Tensor& tensor) {
  return std::ranges::count_if(values_on_gpu(both, tensor), [](double x) { return std::isnan(x); });
}

// The root mean square of the difference of the two copies, relative to that of the host's values.
double relative_error(Both& both, const Both::Tensor& tensor) {
  const std::vector<double> there = values_on_gpu(both, tensor);
  double apart = 0, all = 0;
  for (std::size_t i = 0; i < there.size(); ++i) {
    const double here = Both::value(tensor.host.data(), tensor.dtype, i);
    apart += (there[i] - here) * (there[i] - here);
    all += here * here;
  }
  return std::sqrt(apart / all);
}

}  // namespace

TEST_CASE("fp8: the nearest numbers, at the largest power of two that fits, plain and transposed") {
  Both both;
  constexpr std::array<std::array<std::int64_t, 2>, 4> shapes{
      {{16, 16}, {48, 80}, {64, 128}, {176, 208}}};
  for (const Format& format : formats) {
    const Numbers numbers = numbers_of(format);
    for (const auto& [rows, columns] : shapes) {
      for (const float size : {1e-7F, 1.0F, 3e4F}) {
        CAPTURE(format.most);
        CAPTURE(rows);
        CAPTURE(size);
        const auto x = both.random_before_nan(DType::bf16, rows * columns);
        const auto count = static_cast<std::size_t>(rows * columns);
        float largest = 0;
        fill(both, x, [&](std::uint64_t i) { return i == 5 ? 0.0F : size * at(x, i); });
        for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(at(x, i)));
        const Converted seen = convert(both, x, rows, columns, format.name, true);
        CHECK(seen.plain == convert(both, x, rows, columns, format.name, false).plain);
        int exponent = 0;
        CHECK(std::frexp(seen.scale.inverse, &exponent) == 0.5F);  // a power of two
        const float scale = 1 / seen.scale.inverse;
        CHECK(largest * scale <= format.most);
        CHECK(2 * largest * scale > format.most);
        std::size_t wrong = 0, not_transposed = 0;
        for (std::size_t i = 0; i < count; ++i) {
          const float want = nearest(at(x, i) * scale, numbers);
          if (numbers[seen.plain[i]] != want) ++wrong;
          const std::size_t row = i / static_cast<std::size_t>(columns);
          const std::size_t column = i % static_cast<std::size_t>(columns);
          const auto transposed = seen.transposed[column * static_cast<std::size_t>(rows) + row];
          if (transposed != seen.plain[i]) ++not_transposed;
        }
        CHECK(wrong == 0);
        CHECK(not_transposed == 0);
      }
    }
  }
}

TEST_CASE("fp8: the largest value of a matrix of more elements than all threads take at once") {
  Both both;
  constexpr std::int64_t rows = 16, columns = (1 << 17) + 16;
  const auto x = both.zeros(DType::bf16, rows * columns);
  for (const std::int64_t place : {std::int64_t{3}, rows * columns - 1}) {
    CAPTURE(place);
    fill(both, x,
         [&](std::uint64_t i) { return i == static_cast<std::uint64_t>(place) ? -100.0F : 1.0F; });
    CHECK(convert(both, x, rows, columns, Fp8::e4m3, false).scale.inverse == 0.25F);
  }
}

TEST_CASE("fp8: the largest values of more matrices than one kernel takes, of different sizes") {
  Both both;
  constexpr std::size_t count = 11;
  std::vector<Both::Tensor> tensors;
  std::vector<atoll::ConstView> matrices;
  for (std::size_t i = 0; i < count; ++i) {
    tensors.push_back(both.random(DType::bf16, i % 4 == 1 ? 16 : 5000 * (i + 1) / 8 * 8));
    const auto last = tensors.back().on_host().count - 1;
    // The largest value, negative, is the last of the matrix.
    fill(both, tensors.back(), [&](std::uint64_t j) {
      return j == last ? -8.0f * static_cast<float>(i + 1) : static_cast<float>(j % 7);
    });
    matrices.push_back(i == 3 ? atoll::ConstView{} : tensors.back().on_gpu());
  }
  const atoll::Buffer scales = both.gpu().allocate(count * sizeof(Fp8Scale));
  both.gpu_stream().zero(scales.data(), scales.bytes());
  train::cuda::find_largest(both.stream(), matrices, static_cast<Fp8Scale*>(scales.data()));
  std::vector<Fp8Scale> seen(count);
  both.gpu_stream().copy(seen.data(), scales.data(), scales.bytes());
  both.gpu_stream().synchronize();
  for (std::size_t i = 0; i < count; ++i) {
    CAPTURE(i);
    const float expected = i == 3 ? 0 : 8.0f * static_cast<float>(i + 1);
    CHECK(seen[i].largest == atoll::to_bfloat16(expected).bits);
  }
}

TEST_CASE("fp8: zeros, infinities, NaN and the smallest numbers") {
  Both both;
  constexpr std::int64_t rows = 16, columns = 32;
  const auto x = both.zeros(DType::bf16, rows * columns);
  for (const Format& format : formats) {
    fill(both, x, [](std::uint64_t) { return 0.0F; });
    Converted seen = convert(both, x, rows, columns, format.name, true);
    CHECK(seen.scale.inverse == 1.0F);
    CHECK(std::ranges::all_of(seen.transposed, [](std::uint8_t byte) { return byte == 0; }));
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      fill(both, x, [&](std::uint64_t i) { return i == 7 ? bad : 1.0F; });
      seen = convert(both, x, rows, columns, format.name, true);
      CHECK(std::isnan(seen.scale.inverse));
      CHECK(value_of(seen.plain[8], format) == 1.0F);
    }
    // The smallest bf16 number must still give a scale whose reciprocal is a normal number.
    fill(both, x, [](std::uint64_t i) { return i == 0 ? 9.2e-41F : 0.0F; });
    seen = convert(both, x, rows, columns, format.name, false);
    CHECK(std::isnormal(seen.scale.inverse));
  }
}

TEST_CASE("fp8: a GPU without it is refused") {
  Both both;
  if (both.gpu().name().find("mulated") == std::string::npos) return;
  ::setenv("EMULATED_GPU_CAPABILITY", "8", 1);
  CHECK_THROWS_WITH_AS(
      train::cuda::make_ops(both.gpu(), {.fp8 = true}),
      doctest::Contains("has compute capability 8.0, and products in fp8 need 9.0 (H100)"),
      atoll::Error);
  ::unsetenv("EMULATED_GPU_CAPABILITY");
}

TEST_CASE("fp8 products: groups of linear layers are exact for small whole numbers") {
  Both both;
  const auto ops = make_fp8_ops(both);
  if (!ops) return;
  for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate, WriteMode::none}) {
    CAPTURE(static_cast<int>(mode));
    for (const std::vector<std::int64_t>& outs :
         {std::vector<std::int64_t>{32}, {48, 16, 16}, {80, 80}}) {
      Layers layers(both, 32, 48, outs, true);
      layers.run_on_both(both, *ops, mode);
      for (const Both::Tensor* result : layers.results()) CHECK(both.difference(*result) == 0);
    }
  }
}

TEST_CASE("fp8 products: groups of linear layers, random numbers, as exact as fp8 is") {
  Both both;
  const auto ops = make_fp8_ops(both);
  if (!ops) return;
  Layers layers(both, 64, 96, {64, 32, 32}, false);
  layers.run_on_both(both, *ops, WriteMode::overwrite);
  // e4m3 rounds by 2^-4 at most and 2^-5.4 in the mean square, e5m2 twice as far.
  CHECK(relative_error(both, layers.ys[1]) < 0.06);
  CHECK(relative_error(both, layers.ys[1]) > 0.005);
  CHECK(relative_error(both, layers.dx) < 0.1);
  CHECK(relative_error(both, layers.dx) > 0.042);  // with e4m3 for dy it is 0.037
  CHECK(relative_error(both, layers.dweights[0]) < 0.1);
  CHECK(relative_error(both, layers.dweights[0]) > 0.005);
}

TEST_CASE("fp8 products: dx may overwrite x") {
  Both both;
  const auto ops = make_fp8_ops(both);
  if (!ops) return;
  Layers layers(both, 32, 48, {64}, true);
  both.run(*ops, [&](train::Ops& with, atoll::Stream& stream, const auto& on) {
    const train::LinearsBackward::Layer layer{64, on(layers.dys[0]), on(layers.weights[0]),
                                              on(layers.dweights[0]), WriteMode::accumulate};
    with.linears_backward(stream, {32, 48, on(layers.x), on(layers.x), {&layer, 1}});
  });
  CHECK(both.difference(layers.dweights[0]) == 0);
  CHECK(both.difference(layers.x) == 0);
}

TEST_CASE("fp8 products: an infinity in one operand makes every product with it NaN") {
  Both both;
  const auto ops = make_fp8_ops(both);
  if (!ops) return;
  Layers layers(both, 32, 48, {64}, true);
  layers.x.on_host().as<bfloat16>()[9] = atoll::to_bfloat16(std::numeric_limits<float>::infinity());
  both.push(layers.x);
  layers.run(
      *ops, both.gpu_stream(), [](const Both::Tensor& t) { return t.on_gpu(); },
      WriteMode::overwrite);
  CHECK(not_numbers(both, layers.ys[0]) == 32 * 64);
  CHECK(not_numbers(both, layers.dweights[0]) == 64 * 48);
  CHECK(not_numbers(both, layers.dx) == 0);  // dx = dy W, and x does not occur in it
}

TEST_CASE("fp8 products: other extents, types and addresses are refused") {
  Both both;
  const auto ops = make_fp8_ops(both);
  if (!ops) return;
  const auto failure = [&](std::int64_t tokens, std::int64_t in, std::int64_t out, DType dtype,
                           std::uint64_t shift) -> std::string {
    const auto tensor = [&](std::int64_t count) { return both.zeros(dtype, count + 8); };
    const auto x = tensor(tokens * in), weight = tensor(in * out), y = tensor(tokens * out);
    const auto part = [&](const Both::Tensor& t, std::int64_t count) {
      return t.on_gpu().part(shift, static_cast<std::uint64_t>(count));
    };
    const train::LinearsForward::Layer layer{out, part(weight, in * out), part(y, tokens * out)};
    try {
      ops->linears_forward(both.gpu_stream(), {tokens, in, part(x, tokens * in), {&layer, 1}});
      both.gpu_stream().synchronize();
    } catch (const atoll::Error& error) {
      CHECK(error.code() == atoll::ErrorCode::unsupported);
      return error.what();
    }
    return "";
  };
  const auto has = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  CHECK(failure(16, 32, 48, DType::bf16, 0).empty());
  has(failure(24, 32, 48, DType::bf16, 0), "x is 24 x 32");
  has(failure(16, 40, 48, DType::bf16, 0), "x is 16 x 40");
  has(failure(16, 32, 8, DType::bf16, 0), "the weight is 8 x 32");
  has(failure(16, 32, 48, DType::bf16, 1), "and the address of 16");
  has(failure(16, 32, 48, DType::f32, 0), "the layers are in f32, and must be in bf16");

  const auto x = both.zeros(DType::bf16, 16 * 32), weight = both.zeros(DType::bf16, 8 * 32);
  const auto dy = both.zeros(DType::bf16, 16 * 8), dweight = both.zeros(DType::f32, 8 * 32);
  const train::LinearsBackward::Layer layer{8, dy.on_gpu(), weight.on_gpu(), dweight.on_gpu(),
                                            WriteMode::overwrite};
  CHECK_THROWS_WITH_AS(
      ops->linears_backward(both.gpu_stream(), {16, 32, x.on_gpu(), x.on_gpu(), {&layer, 1}}),
      doctest::Contains("dy is 16 x 8"), atoll::Error);
}

TEST_CASE("fp8 products: reserved scratch serves every group of a layer") {
  Both both;
  const auto ops = make_fp8_ops(both);
  if (!ops) return;
  // 4 query heads and 2 key-value heads of size 16 for 32 inputs, and an MLP of width 96.
  const train::LargestShapes shapes{
      .attention = {2, 16, 4, 2, 16, 0}, .width = 32, .compute = DType::bf16, .ffn = 96};
  ops->reserve(both.gpu_stream(), shapes);
  const std::uint64_t reserved = ops->device_bytes();
  std::size_t most = 0;
  for (const auto& [in, outs] : std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>{
           {32, {64, 32, 32}}, {64, {32}}, {32, {96, 96}}, {96, {32}}}) {
    Layers layers(both, 32, in, outs, true);
    layers.run_on_both(both, *ops, WriteMode::overwrite);
    CHECK(ops->device_bytes() == reserved);
    std::vector<train::LinearsBackward::Layer> gradients;
    for (const std::int64_t out : outs) gradients.push_back({out, {}, {}, {}, {}});
    most =
        std::max(most, train::cuda::fp8_scratch(train::LinearsBackward{32, in, {}, {}, gradients}));
  }
  CHECK(train::cuda::fp8_scratch(shapes) == most);
}

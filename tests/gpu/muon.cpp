// Compares the arithmetic of Muon on a GPU with that on the CPU, and whole steps of Muon.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "both.hpp"
#include "model/cuda/cuda_ops.hpp"
#include "optimizers/muon.hpp"
#include "thread_ranks.hpp"

using atoll::DType;
using namespace atoll_test;
namespace fsdp = atoll::fsdp;

namespace {

// Runs an operation on the GPU and on the CPU, each with its arithmetic.
struct Arithmetics {
  Both& both;
  std::shared_ptr<muon::Arithmetic> gpu = muon::cuda_arithmetic(both.gpu()),
                                    host = muon::cpu_arithmetic();
  template <class Work>
  void run(const Work& work) {
    both.run<muon::Arithmetic>(*gpu, *host, work);
  }
};
using atoll::Stream;
using muon::Arithmetic;

// Copies muon::Figures to memory of both devices, as f64 values.
Both::Tensor figures_of(Both& both, const muon::Figures& figures) {
  auto tensor = both.zeros(DType::f64, sizeof(muon::Figures) / sizeof(double));
  *static_cast<muon::Figures*>(tensor.host.data()) = figures;
  both.push(tensor);
  return tensor;
}
muon::Figures* figures_at(const atoll::View& view) {
  return static_cast<muon::Figures*>(view.data);
}

constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("muon: norm, clip factor and number of steps") {
  Both both;
  Arithmetics with{both};
  for (const float max_norm : {0.0f, 0.5f, 1e9f}) {
    for (const float extra : {0.0f, std::numeric_limits<float>::infinity()}) {
      CAPTURE(max_norm);
      CAPTURE(extra);
      const auto small = both.random(DType::f32, 7), large = both.random(DType::f32, 300'001);
      const auto empty = both.zeros(DType::f32, 0);
      small.on_host().as<float>()[3] += extra;
      both.push(small);
      const auto figures = figures_of(both, {no_number, no_number, no_number, 4});
      with.run([&](Arithmetic& arithmetic, Stream& stream, const auto& on) {
        const std::vector<atoll::ConstView> parts{on(small), on(empty), on(large)};
        arithmetic.sum_squares(stream, parts, figures_at(on(figures)));
        arithmetic.measure(stream, figures_at(on(figures)), max_norm);
        stream.synchronize();
      });
      both.host_stream().synchronize();
      if (extra == 0.0f) {
        CHECK(both.difference(figures) < 1e-6);
        CHECK(figures_at(figures.on_host())->steps == 5);
      } else {
        const auto seen = both.bytes(figures);
        const auto* const there = reinterpret_cast<const muon::Figures*>(seen.data());
        const muon::Figures* const here = figures_at(figures.on_host());
        for (const muon::Figures* one : {there, here}) {
          CHECK(std::isinf(one->norm));
          CHECK(std::isnan(one->factor));
          CHECK(one->steps == 4);
        }
      }
    }
  }
}

TEST_CASE("muon: matrices are converted, normalized and combined") {
  Both both;
  Arithmetics with{both};
  for (const DType dtype : computes) {
    for (const std::int64_t count : {1, 24, 1001, 40'000}) {
      CAPTURE(count);
      const auto source = both.random(DType::f32, count), back = both.zeros(DType::f32, count);
      const auto x = both.zeros(dtype, count), y = both.random(dtype, count);
      const auto check = [&](const auto& work, const Both::Tensor& result, double most) {
        with.run(work);
        CHECK(both.difference(result) <= most);
      };
      check([&](Arithmetic& a, Stream& s, const auto& on) { a.convert(s, on(x), on(source)); }, x,
            0);
      check([&](Arithmetic& a, Stream& s, const auto& on) { a.normalize(s, on(x)); }, x,
            allowed(dtype));
      check([&](Arithmetic& a, Stream& s,
                const auto& on) { a.combine(s, on(x), 3.5f, on(y), -0.25f); },
            x, allowed(dtype));
      check([&](Arithmetic& a, Stream& s, const auto& on) { a.convert(s, on(back), on(x)); }, back,
            allowed(dtype));
    }
  }
  const auto zeros = both.zeros(DType::bf16, 100);
  with.gpu->normalize(both.gpu_stream(), zeros.on_gpu());
  CHECK(both.difference(zeros) == 0);
}

TEST_CASE("muon: steps of matrices and of other parameters; a factor of NaN changes nothing") {
  Both both;
  Arithmetics with{both};
  for (const double factor : {0.5, no_number}) {
    for (const std::int64_t count : {1, 1001, 40'000}) {
      CAPTURE(factor);
      CAPTURE(count);
      const auto weights = both.random(DType::f32, count),
                 gradient = both.random(DType::f32, count);
      const auto moment = both.random(DType::f32, count), second = both.zeros(DType::f32, count);
      const auto out = both.random(DType::f32, count);
      const auto figures = figures_of(both, {0, 0, factor, 3});
      const auto before = both.bytes(weights), momentum_before = both.bytes(moment);
      with.run([&](Arithmetic& arithmetic, Stream& stream, const auto& on) {
        auto* const at = figures_at(on(figures));
        arithmetic.momentum(stream, {on(gradient), on(moment), on(out), 0.9f, at});
        arithmetic.update(stream, {on(weights), on(out), 0.1f, 0.99f, at});
      });
      CHECK(both.difference(moment) < 1e-6);
      CHECK(both.difference(out) < 1e-6);
      CHECK(both.difference(weights) < 1e-6);
      with.run([&](Arithmetic& arithmetic, Stream& stream, const auto& on) {
        arithmetic.adamw(stream, {on(weights), on(gradient), on(moment), on(second), 0.1f, 0.99f,
                                  0.9f, 0.95f, 1e-8f, figures_at(on(figures))});
      });
      CHECK(both.difference(weights) < 1e-5);
      CHECK(both.difference(second) < 1e-6);
      const bool still = both.bytes(weights) == before && both.bytes(moment) == momentum_before;
      CHECK(still == std::isnan(factor));
    }
  }
}

namespace {

muon::Multiply products_of(train::Ops& ops) {
  return [&ops](atoll::Stream& stream, const muon::Product& p) {
    const auto operand = [](muon::Layout layout) {
      return layout == muon::Layout::plain ? train::Operand::plain : train::Operand::transposed;
    };
    ops.multiply(stream,
                 {p.m, p.n, p.k, operand(p.a_layout), operand(p.b_layout), p.a.dtype, p.c.dtype,
                  train::WriteMode::overwrite},
                 p.a, p.b, p.c, {});
  };
}

// Makes three steps with fixed gradients and returns all weights.
std::vector<float> train_on(const atoll::Device& device, DType products) {
  auto world = single_rank();
  const auto mesh = atoll::Mesh::make(world, {1, 1});
  fsdp::Engine engine(mesh, {.device = device});
  engine.add_unit("a", {{"wide", {24, 60}}, {"tall", {50, 9}}, {"bias", {13}, {1, 0}}});
  engine.seal({"a"});
  engine.initialize(3);
  muon::Options options{.weight_decay = 0.1f, .max_norm = 1, .products = products};
  options.decay = fsdp::Decay::matrices;
  options.groups = {{.pattern = "a.tall", .learning_rate_scale = 0.5f}};
  std::unique_ptr<train::Ops> ops;
  if (device.kind() == atoll::DeviceKind::cuda) {
    ops = train::cuda::make_ops(device);
    options.arithmetic = muon::cuda_arithmetic(device);
    options.multiply = products_of(*ops);
  }
  muon::Muon optimizer(engine, mesh, options);
  auto compute = engine.device().stream();
  std::vector<float> gradient;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (int step = 0; step < 3; ++step) {
    {
      auto pass = engine.begin({}, compute);
      { const auto w = pass.forward(engine.unit("a")); }
      const auto w = pass.backward(engine.unit("a"));
      for (const auto& param : engine.unit("a").params()) {
        const atoll::View view = w.grad(param.name).view;
        gradient.resize(view.count);
        for (float& value : gradient) value = normal(random);
        compute.copy(view.data, gradient.data(), view.bytes());
        compute.synchronize();
      }
    }
    optimizer.step(0.1f, compute);
    CHECK(optimizer.grad_norm() > 10);
  }
  CHECK(optimizer.steps() == 3);
  std::vector<float> weights;
  engine.visit([&](const auto&, const auto&, auto values) {
    weights.insert(weights.end(), values.begin(), values.end());
  });
  return weights;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

TEST_CASE("muon: steps on a GPU give the weights of the CPU") {
  const auto gpu = atoll::Device::cuda(0);
  const auto expected = train_on(atoll::Device::cpu(), DType::f32);
  const float f32 = largest_difference(train_on(gpu, DType::f32), expected);
  const float bf16 = largest_difference(train_on(gpu, DType::bf16), expected);
  const float host_bf16 = largest_difference(train_on(atoll::Device::cpu(), DType::bf16), expected);
  MESSAGE("differences: f32 " << f32 << ", bf16 " << bf16 << ", bf16 on the CPU " << host_bf16);
  CHECK(f32 < 1e-4f);
  CHECK(bf16 < 5e-2f);
  CHECK(host_bf16 < 5e-2f);
  CHECK(bf16 > 0);
}

TEST_CASE("muon: a GPU needs arithmetic and products") {
  auto world = single_rank();
  const auto mesh = atoll::Mesh::make(world, {1, 1});
  fsdp::Engine engine(mesh, {.device = atoll::Device::cuda(0)});
  engine.add_unit("a", {{"w", {4, 4}}});
  engine.seal({"a"});
  CHECK_THROWS_WITH_AS(muon::Muon(engine, mesh),
                       doctest::Contains("Muon: needs Options::arithmetic and Options::multiply"),
                       atoll::Error);
}

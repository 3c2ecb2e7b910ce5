// The trainer's kernels on a GPU against its arithmetic on the CPU, on shapes that do and do not fill packs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "atoll/device.hpp"
#include "device/backend.hpp"
#include "model/cpu/cpu_ops.hpp"
#include "model/cuda/kernels.hpp"

using atoll::ConstView;
using atoll::Device;
using atoll::DType;
using atoll::View;
using namespace train;

namespace {

// The same memory on both devices.
class Both {
 public:
  struct Tensor {
    atoll::Buffer gpu, host;
    DType dtype;
    View on_gpu() const { return gpu.view(dtype); }
    View on_host() const { return host.view(dtype); }
  };

  Tensor zeros(DType dtype, std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * size_of(dtype);
    Tensor tensor{gpu_.allocate(bytes), host_.allocate(bytes), dtype};
    std::memset(tensor.host.data(), 0, bytes);
    push(tensor);
    return tensor;
  }
  Tensor random(DType dtype, std::int64_t count) {
    Tensor tensor = zeros(dtype, count);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = normal(random_);
      if (dtype == DType::f32) {
        tensor.host.view(dtype).as<float>()[i] = value;
      } else {
        tensor.host.view(dtype).as<atoll::bfloat16>()[i] = atoll::to_bfloat16(value);
      }
    }
    push(tensor);
    return tensor;
  }
  Tensor ids(std::int64_t count, std::int32_t lowest, std::int32_t below) {
    Tensor tensor = zeros(DType::i32, count);
    std::uniform_int_distribution<std::int32_t> uniform(lowest, below - 1);
    std::generate_n(tensor.host.view(DType::i32).as<std::int32_t>(), count,
                    [&] { return uniform(random_); });
    push(tensor);
    return tensor;
  }

  void push(const Tensor& tensor) {
    on_gpu_.copy(tensor.gpu.data(), tensor.host.data(), tensor.host.bytes());
    on_gpu_.synchronize();
  }
  // The largest difference, as a part of 1 + the larger of both values.
  double difference(const Tensor& tensor) {
    std::vector<std::byte> seen(tensor.gpu.bytes());
    on_gpu_.copy(seen.data(), tensor.gpu.data(), seen.size());
    on_gpu_.synchronize();
    on_host_.synchronize();
    double most = 0;
    for (std::uint64_t i = 0; i < tensor.on_host().count; ++i) {
      const double a = value(seen.data(), tensor.dtype, i);
      const double b = value(tensor.host.data(), tensor.dtype, i);
      if (std::isnan(a) != std::isnan(b)) return std::numeric_limits<double>::infinity();
      most = std::max(most, std::abs(a - b) / (1 + std::max(std::abs(a), std::abs(b))));
    }
    return most;
  }
  std::vector<std::byte> bytes(const Tensor& tensor) {
    std::vector<std::byte> seen(tensor.gpu.bytes());
    on_gpu_.copy(seen.data(), tensor.gpu.data(), seen.size());
    on_gpu_.synchronize();
    return seen;
  }

  cudaStream_t stream() { return static_cast<cudaStream_t>(on_gpu_.backend().native()); }
  atoll::Stream& host_stream() { return on_host_; }
  cpu::CpuOps& ops() { return ops_; }
  const Device& gpu() const { return gpu_; }

 private:
  static double value(const void* data, DType dtype, std::uint64_t i) {
    if (dtype == DType::f32) return static_cast<const float*>(data)[i];
    if (dtype == DType::f64) return static_cast<const double*>(data)[i];
    return to_float(static_cast<const atoll::bfloat16*>(data)[i]);
  }

  Device gpu_ = Device::cuda(0), host_ = Device::host();
  atoll::Stream on_gpu_ = gpu_.stream(), on_host_ = host_.stream();
  cpu::CpuOps ops_{{.threads = 4}};
  std::mt19937 random_{7};
};

// bf16 has 8 bits; f32 sums of thousands have different orders.
double allowed(DType dtype) { return dtype == DType::bf16 ? 1e-2 : 2e-5; }
constexpr DType computes[] = {DType::f32, DType::bf16};

}  // namespace

TEST_CASE("rms_norm") {
  Both both;
  for (const DType dtype : computes) {
    for (const std::int64_t width : {1, 7, 64, 768, 1000, 4096, 8192}) {
      for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate, WriteMode::none}) {
        CAPTURE(width);
        constexpr std::int64_t tokens = 37;
        const auto x = both.random(dtype, tokens * width), weight = both.random(dtype, width);
        const auto y = both.zeros(dtype, tokens * width), inverse = both.zeros(DType::f32, tokens);
        const auto dy = both.random(dtype, tokens * width), dx = both.random(dtype, tokens * width);
        const auto dweight = both.random(DType::f32, width);
        cuda::rms_norm_forward(both.stream(), {width, 1e-5f, x.on_gpu(), weight.on_gpu(),
                                               y.on_gpu(), inverse.on_gpu()});
        both.ops().rms_norm_forward(
            both.host_stream(),
            {width, 1e-5f, x.on_host(), weight.on_host(), y.on_host(), inverse.on_host()});
        CHECK(both.difference(y) < allowed(dtype));
        CHECK(both.difference(inverse) < allowed(DType::f32));
        const auto dx_mode = mode == WriteMode::none ? WriteMode::overwrite : mode;
        const RmsNormBackward here{width,       x.on_gpu(),  weight.on_gpu(), inverse.on_gpu(),
                                   dy.on_gpu(), dx.on_gpu(), dx_mode,         dweight.on_gpu(),
                                   mode};
        const auto partials =
            both.zeros(DType::f32, static_cast<std::int64_t>(cuda::rms_norm_partials(here)));
        cuda::rms_norm_backward(both.stream(), here, partials.on_gpu().as<float>());
        both.ops().rms_norm_backward(
            both.host_stream(), {width, x.on_host(), weight.on_host(), inverse.on_host(),
                                 dy.on_host(), dx.on_host(), dx_mode, dweight.on_host(), mode});
        CHECK(both.difference(dx) < allowed(dtype));
        CHECK(both.difference(dweight) < allowed(DType::f32));
      }
    }
  }
}

TEST_CASE("rope there and back") {
  Both both;
  for (const DType dtype : computes) {
    for (const std::int64_t head_dim : {2, 6, 64, 128}) {
      CAPTURE(head_dim);
      constexpr std::int64_t seq = 33, rows = 2, heads = 3;
      const auto table = both.zeros(DType::f32, seq * head_dim);
      const auto x = both.random(dtype, rows * seq * heads * head_dim);
      cuda::rope_table(both.stream(), table.on_gpu(), head_dim, 10000.0);
      both.ops().rope_table(both.host_stream(), table.on_host(), head_dim, 10000.0);
      CHECK(both.difference(table) < 1e-6);
      for (const RopeDirection direction : {RopeDirection::forward, RopeDirection::inverse}) {
        cuda::rope(both.stream(), {seq, heads, head_dim, x.on_gpu(), table.on_gpu(), direction});
        both.ops().rope(both.host_stream(),
                        {seq, heads, head_dim, x.on_host(), table.on_host(), direction});
        CHECK(both.difference(x) < allowed(dtype));
      }
    }
  }
}

TEST_CASE("add and swiglu, in place too") {
  Both both;
  for (const DType dtype : computes) {
    for (const std::int64_t n : {1, 8, 1001, 65536}) {
      CAPTURE(n);
      const auto gate = both.random(dtype, n), up = both.random(dtype, n);
      const auto dout = both.random(dtype, n), out = both.zeros(dtype, n);
      cuda::add(both.stream(), gate.on_gpu(), up.on_gpu(), out.on_gpu());
      both.ops().add(both.host_stream(), gate.on_host(), up.on_host(), out.on_host());
      CHECK(both.difference(out) == 0);
      cuda::swiglu_forward(both.stream(), gate.on_gpu(), up.on_gpu(), out.on_gpu());
      both.ops().swiglu_forward(both.host_stream(), gate.on_host(), up.on_host(), out.on_host());
      CHECK(both.difference(out) < allowed(dtype));
      cuda::swiglu_backward(
          both.stream(), {gate.on_gpu(), up.on_gpu(), dout.on_gpu(), gate.on_gpu(), up.on_gpu()});
      both.ops().swiglu_backward(both.host_stream(), {gate.on_host(), up.on_host(), dout.on_host(),
                                                      gate.on_host(), up.on_host()});
      CHECK(both.difference(gate) < allowed(dtype));
      CHECK(both.difference(up) < allowed(dtype));
    }
  }
}

TEST_CASE("embedding: rows, their gradient with the same bits every time, and ids from outside") {
  Both both;
  for (const DType dtype : computes) {
    for (const std::int64_t width : {1, 24, 520}) {
      for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate}) {
        CAPTURE(width);
        constexpr std::int64_t vocab = 50, tokens = 700;
        const auto ids = both.ids(tokens, 0, vocab);
        const auto table = both.random(dtype, vocab * width),
                   out = both.zeros(dtype, tokens * width);
        const auto dy = both.random(dtype, tokens * width);
        const auto dtable = both.random(DType::f32, vocab * width);
        const auto bad = both.zeros(DType::i32, 2);
        auto* const seen = reinterpret_cast<cuda::BadId*>(bad.on_gpu().data);
        cuda::embedding_forward(both.stream(), ids.on_gpu(), table.on_gpu(), out.on_gpu(), width,
                                seen);
        both.ops().embedding_forward(both.host_stream(), ids.on_host(), table.on_host(),
                                     out.on_host(), width);
        CHECK(both.difference(out) == 0);
        const atoll::Buffer scratch = both.gpu().allocate(cuda::embedding_scratch(tokens));
        std::vector<std::byte> first;
        for (int again = 0; again < 2; ++again) {
          both.push(dtable);
          cuda::embedding_backward(both.stream(),
                                   {vocab, width, ids.on_gpu(), dy.on_gpu(), dtable.on_gpu(), mode},
                                   scratch.data(), seen);
          if (again == 0) first = both.bytes(dtable);
        }
        CHECK(both.bytes(dtable) == first);
        both.ops().embedding_backward(both.host_stream(), {vocab, width, ids.on_host(),
                                                           dy.on_host(), dtable.on_host(), mode});
        CHECK(both.difference(dtable) < allowed(DType::f32));
        ids.on_host().as<std::int32_t>()[5] = vocab;
        both.push(ids);
        cuda::embedding_forward(both.stream(), ids.on_gpu(), table.on_gpu(), out.on_gpu(), width,
                                seen);
        std::int32_t told[2];
        std::memcpy(told, both.bytes(bad).data(), sizeof told);
        CHECK(told[0] == vocab);
        CHECK(told[1] == 6);  // from 1
      }
    }
  }
}

TEST_CASE("cross_entropy, with ignored labels, with and without a gradient, into the logits too") {
  Both both;
  for (const DType in : computes) {
    for (const DType out : computes) {
      for (const std::int64_t vocab : {3, 1000, 32000}) {
        CAPTURE(vocab);
        constexpr std::int64_t rows = 41;
        const auto labels = both.ids(rows, -2, static_cast<std::int32_t>(vocab));
        const auto logits = both.random(in, rows * vocab), dlogits = both.zeros(out, rows * vocab);
        const auto total = both.zeros(DType::f64, 2), losses = both.zeros(DType::f64, rows);
        const auto bad = both.zeros(DType::i32, 2);
        for (const bool gradient : {false, true}) {
          const View none{nullptr, 0, out};
          cuda::cross_entropy(both.stream(),
                              {vocab, labels.on_gpu(), logits.on_gpu(),
                               gradient ? dlogits.on_gpu() : none, 0.25f, total.on_gpu()},
                              losses.on_gpu().as<double>(),
                              reinterpret_cast<cuda::BadId*>(bad.on_gpu().data));
          // The host's writes into f32 logits.
          both.push(logits);
          auto kept = both.random(in, rows * vocab);
          std::memcpy(kept.host.data(), logits.host.data(), logits.host.bytes());
          both.ops().cross_entropy(both.host_stream(),
                                   {vocab, labels.on_host(), kept.on_host(),
                                    gradient ? dlogits.on_host() : none, 0.25f, total.on_host()});
          CHECK(both.difference(total) < 1e-5);
          if (gradient) CHECK(both.difference(dlogits) < (out == DType::bf16 ? 1e-2 : 1e-5));
        }
        if (in != out) continue;
        cuda::cross_entropy(
            both.stream(),
            {vocab, labels.on_gpu(), logits.on_gpu(), logits.on_gpu(), 0.25f, total.on_gpu()},
            losses.on_gpu().as<double>(), reinterpret_cast<cuda::BadId*>(bad.on_gpu().data));
        CHECK(both.bytes(logits) == both.bytes(dlogits));
      }
    }
  }
}

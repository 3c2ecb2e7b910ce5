// Compares every kernel of the cuda device with the same operation of the CPU device, for counts
// that are and that are not multiples of a pack, the group of elements that a thread loads at once.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "atoll/device.hpp"
#include "atoll/error.hpp"
#include "device/int8_blocks.hpp"
#include "device/ops.hpp"

using atoll::ConstView;
using atoll::Device;
using atoll::DType;
using atoll::ReduceOp;
using atoll::View;

namespace {

constexpr std::uint64_t sizes[] = {1, 3, 8, 255, 4096, 4097, 100'003, 1'048'576};

std::vector<float> random_values(std::uint64_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

// Runs an operation on both devices with the same input and compares the results.
class Both {
 public:
  Both()
      : gpu_(Device::cuda()),
        host_(Device::cpu()),
        on_gpu_(gpu_.stream()),
        on_host_(host_.stream()) {}

  struct Pair {
    atoll::Buffer gpu, host;
    DType dtype;
    std::uint64_t shift;  // number of elements between the start of the memory and the view
    std::uint64_t count;
    View on_gpu() const { return gpu.view(dtype).part(shift, count); }
    View on_host() const { return host.view(dtype).part(shift, count); }
  };
  // Allocates memory on both devices. The view starts `shift` elements after the aligned start of
  // the memory.
  Pair make(DType dtype, std::uint64_t count, std::uint64_t shift = 0) {
    const std::size_t bytes = (count + shift) * size_of(dtype);
    Pair pair{gpu_.allocate(bytes), host_.allocate(bytes), dtype, shift, count};
    on_host_.zero(pair.host.data(), bytes);
    on_host_.synchronize();
    push(pair);
    return pair;
  }
  Pair random(DType dtype, std::uint64_t count, unsigned seed, std::uint64_t shift = 0) {
    Pair pair = make(dtype, count, shift);
    const auto values = random_values(count, seed);
    host_.ops().cast(on_host_, pair.on_host(), values);
    on_host_.synchronize();
    push(pair);
    return pair;
  }
  void push(const Pair& pair) {
    on_gpu_.copy(pair.gpu.data(), pair.host.data(), pair.gpu.bytes());
    on_gpu_.synchronize();
  }
  template <class Work>
  void run(const Work& work) {
    work(gpu_.ops(), on_gpu_, true);
    work(host_.ops(), on_host_, false);
    on_gpu_.synchronize();
    on_host_.synchronize();
  }
  std::vector<std::byte> bytes_of(const Pair& pair) {
    std::vector<std::byte> bytes(pair.gpu.bytes());
    on_gpu_.copy(bytes.data(), pair.gpu.data(), bytes.size());
    on_gpu_.synchronize();
    return bytes;
  }
  // Returns true if all bits on both devices are equal, including the elements before the view.
  bool same(const Pair& pair) {
    const auto bytes = bytes_of(pair);
    return std::memcmp(bytes.data(), pair.host.data(), bytes.size()) == 0;
  }
  // Returns true if the bf16 elements of `low` on the GPU are those of `whole` on the GPU, rounded.
  bool is_rounded(const Pair& low, const Pair& whole) {
    const auto rounded = bytes_of(low), bytes = bytes_of(whole);
    std::vector<float> values(whole.count);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    std::vector<atoll::bfloat16> expected(values.size());
    std::ranges::transform(values, expected.begin(), atoll::to_bfloat16);
    return std::memcmp(rounded.data(), expected.data(), rounded.size()) == 0;
  }
  // Returns the largest relative difference of f32 elements. Magnitudes below 1e-30 are treated as
  // 1e-30.
  double difference(const Pair& pair) {
    const auto bytes = bytes_of(pair);
    double worst = 0;
    for (std::uint64_t i = 0; i < pair.count; ++i) {
      float a = 0;
      std::memcpy(&a, bytes.data() + (pair.shift + i) * sizeof(float), sizeof(float));
      const auto x = static_cast<double>(a), y = static_cast<double>(pair.on_host().as<float>()[i]);
      const double size = std::max({std::abs(x), std::abs(y), 1e-30});
      worst = std::max(worst, std::abs(x - y) / size);
    }
    return worst;
  }

 private:
  Device gpu_, host_;
  atoll::Stream on_gpu_, on_host_;
};

View pick(const Both::Pair& pair, bool gpu) { return gpu ? pair.on_gpu() : pair.on_host(); }

}  // namespace

TEST_CASE("casts round as on the host") {
  Both both;
  for (const DType from : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const DType to : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      for (const std::uint64_t n : sizes) {
        for (const std::uint64_t shift : {0, 1}) {
          const auto src = both.random(from, n, 1, shift);
          const auto dst = both.make(to, n, shift);
          both.run([&](auto& ops, auto& stream, bool gpu) {
            ops.cast(stream, pick(dst, gpu), pick(src, gpu));
          });
          CHECK_MESSAGE(both.same(dst), atoll::name(from), " to ", atoll::name(to), ", ", n);
        }
      }
    }
  }
}

TEST_CASE("scale, out of place and in place, gives the bits of the host") {
  Both both;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::uint64_t n : sizes) {
      for (const std::uint64_t shift : {0, 1}) {
        const auto src = both.random(dtype, n, 1, shift), dst = both.make(dtype, n, shift);
        both.run([&](auto& ops, auto& stream, bool gpu) {
          ops.scale(stream, pick(dst, gpu), pick(src, gpu), -0.3);
          ops.scale(stream, pick(src, gpu), pick(src, gpu), 1.7);
        });
        CHECK_MESSAGE(both.same(dst), atoll::name(dtype), ", ", n);
        CHECK_MESSAGE(both.same(src), atoll::name(dtype), ", ", n, " in place");
      }
    }
  }
}

TEST_CASE("a sum of parts has the bits of the host's tree") {
  Both both;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      for (const std::uint64_t parts : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16}) {
        for (const auto& [block, n] : {std::pair(0, 10'007), {0, 10'240}, {3, 10'007}}) {
          if (block > 0 && parts % static_cast<std::uint64_t>(block) != 0) continue;
          const auto src = both.random(dtype, static_cast<std::uint64_t>(n) * parts, 7);
          const auto dst = both.make(dtype, static_cast<std::uint64_t>(n));
          both.run([&, block = block](auto& ops, auto& stream, bool gpu) {
            ops.reduce(stream, pick(dst, gpu), pick(src, gpu), op, block);
          });
          CHECK_MESSAGE(both.same(dst), atoll::name(dtype), " ", atoll::name(op), " of ", parts,
                        " x ", n, " in blocks of ", block);
        }
      }
    }
  }
}

TEST_CASE("f32 parts are summed in f32 and rounded once to bf16 and f16") {
  Both both;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::uint64_t parts : {2, 3, 8}) {
      for (const auto& [block, n] : {std::pair(0, 10'007), {0, 10'240}, {2, 4096}}) {
        if (block > 0 && parts % static_cast<std::uint64_t>(block) != 0) continue;
        const auto src = both.random(DType::f32, static_cast<std::uint64_t>(n) * parts, 7);
        const auto dst = both.make(dtype, static_cast<std::uint64_t>(n));
        both.run([&, block = block](auto& ops, auto& stream, bool gpu) {
          ops.reduce(stream, pick(dst, gpu), pick(src, gpu), ReduceOp::sum, block);
        });
        CHECK_MESSAGE(both.same(dst), atoll::name(dtype), " of ", parts, " x ", n, ", ", block);
      }
    }
  }
}

TEST_CASE("rows of a grid are packed as on the host, as they are, widened and scaled") {
  Both both;
  for (const auto& [from, to] : {std::pair(DType::f32, DType::f32),
                                 {DType::bf16, DType::bf16},
                                 {DType::f16, DType::f16},
                                 {DType::f64, DType::f64},
                                 {DType::bf16, DType::f32},
                                 {DType::f16, DType::f32}}) {
    for (const std::uint64_t count : {1, 7, 256, 4097}) {
      for (const auto& [gap, first] : {std::pair(0, 0), {5, 3}, {8, 8}}) {
        const atoll::RowGrid grid{.rows = 3,
                                  .columns = 4,
                                  .count = count,
                                  .stride = count + static_cast<std::uint64_t>(gap),
                                  .first = static_cast<std::uint64_t>(first)};
        const std::uint64_t rows = grid.rows * grid.columns;
        const auto src = both.random(from, grid.first + rows * grid.stride, 3);
        for (const double factor : {1.0, -0.3}) {
          const auto dst = both.make(to, rows * count);
          both.run([&](auto& ops, auto& stream, bool gpu) {
            ops.pack_rows(stream, pick(dst, gpu), pick(src, gpu), grid, factor);
          });
          CHECK_MESSAGE(both.same(dst), atoll::name(from), " to ", atoll::name(to), ", rows of ",
                        count, ", ", gap, " apart, factor ", factor);
        }
      }
    }
  }
}

TEST_CASE("sums of squares by block have the bits of the host") {
  Both both;
  for (const std::uint64_t n : sizes) {
    const auto src = both.random(DType::f32, n, 3);
    const auto out = both.make(DType::f64, (n + atoll::norm_block - 1) / atoll::norm_block);
    both.run([&](auto& ops, auto& stream, bool gpu) {
      ops.sum_squares(stream, pick(out, gpu), pick(src, gpu));
    });
    CHECK_MESSAGE(both.same(out), n);
  }
}

TEST_CASE("the norm, the clip factor and skipped steps") {
  Both both;
  for (const std::uint64_t n : {std::uint64_t{1}, std::uint64_t{255}, std::uint64_t{70'001}}) {
    for (const bool finite : {true, false}) {
      const auto blocks = both.make(DType::f64, n);
      auto* const values = blocks.on_host().as<double>();
      for (std::uint64_t i = 0; i < n; ++i) values[i] = static_cast<double>(i % 97) / 7;
      if (!finite) values[n / 2] = std::numeric_limits<double>::infinity();
      both.push(blocks);
      for (const auto& [skips, scale] :
           {std::pair{true, 1.0f}, {false, 1.0f}, {true, 0.3f}, {false, 0.3f}}) {
        const atoll::ClipRule rule{1.0f, skips, scale};
        const auto result = both.make(DType::f64, 3);
        both.run([&](auto& ops, auto& stream, bool gpu) {
          ops.clip_factor(stream, pick(result, gpu), pick(blocks, gpu), rule);
        });
        const auto bytes = both.bytes_of(result);
        double on_gpu[3];
        std::memcpy(on_gpu, bytes.data(), sizeof on_gpu);
        const double* const on_host = result.on_host().as<double>();
        for (int k = 0; k < 3; ++k) {
          CHECK((on_gpu[k] == on_host[k] || (std::isnan(on_gpu[k]) && std::isnan(on_host[k]))));
        }
      }
    }
  }
}

TEST_CASE("after a failure the factor is NaN, and no step is counted") {
  Both both;
  const auto blocks = both.make(DType::f64, 3), result = both.make(DType::f64, 3);
  const Device gpu = Device::cuda();
  const auto factor_on = [&](atoll::Stream& stream) {
    gpu.ops().clip_factor(stream, result.on_gpu(), blocks.on_gpu(), {1.0f});
  };
  auto failed = gpu.stream();
  factor_on(failed);
  failed.synchronize();
  failed.enqueue([] { throw atoll::Error(atoll::ErrorCode::backend, "a peer is gone"); });
  factor_on(failed);
  CHECK_THROWS_AS(failed.synchronize(), atoll::Error);
  double values[3];
  const auto read = [&] {
    const auto bytes = both.bytes_of(result);
    std::memcpy(values, bytes.data(), sizeof values);
  };
  read();
  CHECK(std::isnan(values[1]));
  CHECK(values[2] == 1);
  auto fine = gpu.stream();
  factor_on(fine);
  fine.synchronize();
  read();
  CHECK(values[1] == 1);
  CHECK(values[2] == 2);
}

namespace {

// A limit on the number of blocks, as for updates beside other work, selects other kernels.
constexpr unsigned few = 3;

void check_updates(Both& both, std::uint64_t n, unsigned most_blocks) {
  CAPTURE(n);
  CAPTURE(most_blocks);
  for (const bool adam : {true, false}) {
    const auto w = both.random(DType::f32, n, 1), g = both.random(DType::f32, n, 2);
    const auto m = both.make(DType::f32, n), v = both.make(DType::f32, n);
    const auto low = both.make(DType::bf16, n);
    // Two values that each update reads: the number of the step, and the factor for gradients.
    const auto steps = both.make(DType::f64, 2);
    for (int step = 1; step <= 3; ++step) {
      steps.on_host().as<double>()[0] = step;
      // A factor of NaN makes the optimizer skip the second step.
      steps.on_host().as<double>()[1] = step == 2 ? std::nan("") : 0.5;
      both.push(steps);
      both.run([&](auto& ops, auto& stream, bool gpu) {
        const double* const at = pick(steps, gpu).template as<double>();
        if (adam) {
          ops.adamw(stream, {pick(w, gpu), pick(g, gpu), pick(m, gpu), pick(v, gpu), pick(low, gpu),
                             1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, at, at + 1, 0, 0, most_blocks});
        } else {
          ops.sgd(stream,
                  {pick(w, gpu), pick(g, gpu), pick(low, gpu), 1e-2f, 0.1f, at + 1, most_blocks});
        }
      });
      CHECK(both.difference(w) < 1e-6);
      CHECK(both.difference(m) < 1e-6);
      CHECK(both.difference(v) < 1e-6);
      CHECK(both.is_rounded(low, w));
    }
  }
}

void check_first_step(Both& both, std::uint64_t n) {
  CAPTURE(n);
  const auto w = both.random(DType::f32, n, 1), g = both.random(DType::f32, n, 2);
  const auto m = both.make(DType::f32, n), v = both.make(DType::f32, n);
  const auto steps = both.make(DType::f64, 1);
  steps.on_host().as<double>()[0] = 1;
  both.push(steps);
  both.run([&](auto& ops, auto& stream, bool gpu) {
    ops.adamw(stream, {pick(w, gpu), pick(g, gpu), pick(m, gpu), pick(v, gpu), View{}, 1e-2f, 0.9f,
                       0.95f, 1e-8f, 0.1f, pick(steps, gpu).template as<double>(), nullptr});
  });
  CHECK(both.difference(w) < 1e-6);
  CHECK(both.difference(m) < 1e-6);
}

}  // namespace

TEST_CASE("optimizers update weights as on the host") {
  Both both;
  for (const std::uint64_t n : {4096, 12'289, 40'000}) {
    for (const unsigned most_blocks : {0u, few}) check_updates(both, n, most_blocks);
  }
}

TEST_CASE("counts beyond the largest grid are updated completely") {
  Both both;
  // An odd count, for which each thread updates one element.
  check_first_step(both, 8192 * 256 + 1001);
  // A multiple of 4, for which each thread updates four elements.
  check_first_step(both, 4 * 8192 * 256 + 4096);
}

TEST_CASE("bf16 moments have the bits of the host, with stochastic rounding and to nearest") {
  Both both;
  for (const std::uint64_t n : {std::uint64_t{4096}, std::uint64_t{12'289}}) {
    for (const std::uint64_t key : {0, 77}) {
      const auto w = both.random(DType::f32, n, 1), g = both.random(DType::f32, n, 2);
      const auto m = both.make(DType::bf16, n), v = both.make(DType::bf16, n);
      const auto low = both.make(DType::bf16, n);
      const auto steps = both.make(DType::f64, 2);
      for (int step = 1; step <= 3; ++step) {
        steps.on_host().as<double>()[0] = step;
        steps.on_host().as<double>()[1] = 0.5;
        both.push(steps);
        both.run([&](auto& ops, auto& stream, bool gpu) {
          const double* const at = pick(steps, gpu).template as<double>();
          ops.adamw(stream,
                    {pick(w, gpu), pick(g, gpu), pick(m, gpu), pick(v, gpu), pick(low, gpu), 1e-2f,
                     0.9f, 0.95f, 1e-8f, 0.1f, at, at + 1, key, 1000, step == 2 ? few : 0});
        });
      }
      CHECK(both.same(m));
      CHECK(both.same(v));
      CHECK(both.difference(w) < 1e-6);
    }
  }
}

TEST_CASE("8-bit blocks become the values of the host, in each type") {
  Both both;
  for (const std::uint64_t n : {64, 4096, 100'032}) {
    std::vector<std::byte> blocks(atoll::int8_bytes(n));
    atoll::cpu::quantize(blocks.data(), random_values(n, 5));
    const auto stored = both.make(DType::u8, blocks.size());
    std::memcpy(stored.on_host().data, blocks.data(), blocks.size());
    both.push(stored);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const auto dst = both.make(dtype, n);
      both.run([&](auto& ops, auto& stream, bool gpu) {
        ops.dequantize(stream, pick(dst, gpu), pick(stored, gpu));
      });
      CHECK(both.same(dst));
    }
  }
}

TEST_CASE("initial weights are those of the host") {
  Both both;
  const auto dst = both.make(DType::f32, 100'003);
  both.run([&](auto& ops, auto& stream, bool gpu) {
    ops.fill_normal(stream, pick(dst, gpu), {42, 7, 1000, 0.5f, 0.02f});
  });
  CHECK(both.difference(dst) < 1e-5);
}

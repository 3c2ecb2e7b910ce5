// Compares the operations of the trainer (Ops) on a GPU with the same operations on the CPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "both.hpp"
#include "model/cuda/attention.hpp"
#include "model/cuda/cuda_ops.hpp"
#include "model/cuda/kernels.hpp"

using atoll::Device;
using atoll::DType;
using namespace train;
using namespace atoll_test;

namespace {

const AttentionShape shapes[] = {
    {1, 1, 1, 1, 2, 0},    {2, 5, 2, 1, 6, 0},      {1, 17, 4, 2, 8, 0},    {1, 9, 3, 3, 10, 4},
    {2, 18, 2, 2, 4, 1},   {1, 20, 4, 1, 16, 7},    {1, 12, 2, 1, 34, 50},  {1, 150, 2, 1, 64, 0},
    {2, 131, 2, 2, 20, 0}, {1, 200, 2, 1, 128, 33}, {1, 97, 4, 2, 128, 64}, {1, 70, 2, 1, 192, 0},
    {1, 66, 2, 1, 256, 9},
};

// Returns the allowed difference of attention results. It is large because attention is a softmax
// over hundreds of products of rounded inputs. cuDNN also rounds the probabilities, and the
// gradient of a value sums hundreds of them: on an H100, the largest difference is 0.021.
double allowed_of_attention(DType dtype) { return dtype == DType::bf16 ? 3e-2 : 2e-5; }

// Scratch memory that is filled with NaN, because its earlier users may leave any values in it.
class Scratch {
 public:
  explicit Scratch(Both& both) : both_(both) {}
  void* operator()(std::size_t bytes) {
    both_.gpu_stream().synchronize();
    memory_ = both_.gpu().allocate(bytes);
    // Fill with 0xff, which makes every value NaN.
    cudaMemsetAsync(memory_.data(), 0xff, bytes, both_.stream());
    return memory_.data();
  }

 private:
  Both& both_;
  atoll::Buffer memory_;
};

// Attention by atoll's own kernels, which Ops uses for cases that cuDNN does not support.
struct Kernels {
  Both& both;
  void forward(const AttentionForward& args) const { cuda::attention_forward(both.stream(), args); }
  void backward(const AttentionBackward& args) const {
    const auto scratch =
        both.zeros(DType::f32, static_cast<std::int64_t>(cuda::attention_scratch(args.shape)));
    cuda::attention_backward(both.stream(), args, scratch.on_gpu().as<float>());
    both.gpu_stream().synchronize();
  }
};

struct ByOps {
  Both& both;
  std::unique_ptr<Ops> ops;
  void forward(const AttentionForward& args) const { ops->run(both.gpu_stream(), args); }
  void backward(const AttentionBackward& args) const { ops->run(both.gpu_stream(), args); }
};

// Attention by cuDNN only. Sets all_done to false if cuDNN does not support a call.
struct ByCudnn {
  Both& both;
  cuda::Attention& attention;
  Scratch& scratch;
  bool& all_done;
  void forward(const AttentionForward& args) const {
    all_done &= attention.forward(both.stream(), args, std::ref(scratch));
  }
  void backward(const AttentionBackward& args) const {
    all_done &= attention.backward(both.stream(), args, std::ref(scratch));
  }
};

// Returns the token positions of packed documents: the first row contains documents with 1, 2, 3
// and more tokens, and later rows contain longer ones. The end of a row cuts the last document of
// the row.
auto documents(Both& both, std::int64_t tokens, std::int64_t seq) {
  auto positions = both.ids(tokens, 0, 1);
  auto* const values = positions.on_host().as<std::int32_t>();
  std::int64_t length = 0, left = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (t % seq == 0) left = 0, length = 2 * (t / seq);
    if (left == 0) left = length = length < 4 ? length + 1 : 2 * length;
    values[t] = static_cast<std::int32_t>(length - left--);
  }
  both.push(positions);
  return positions;
}

// Returns true if cuDNN supports packed rows on this GPU, which must have compute capability 9 or
// 10. On other GPUs the trainer uses atoll's kernels.
bool does_packed(const Both& both) {
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, both.gpu().ordinal());
  return major == 9 || major == 10;
}

std::int64_t count_documents(const Both::Tensor& positions) {
  const auto* const values = positions.on_host().as<std::int32_t>();
  return std::count(values, values + positions.on_host().count, 0);
}

// Compares attention and the gradients of attention with the results of the CPU.
template <class Attention>
void check_attention(Both& both, const Attention& attention, AttentionShape shape, DType dtype,
                     bool packed) {
  CAPTURE(atoll::name(dtype));
  CAPTURE(shape.seq);
  CAPTURE(shape.head_dim);
  CAPTURE(shape.window);
  CAPTURE(packed);
  const std::int64_t tokens = shape.rows * shape.seq;
  const std::int64_t queries = tokens * shape.heads * shape.head_dim;
  const std::int64_t keys = tokens * shape.kv_heads * shape.head_dim;
  const auto q = both.random_before_nan(dtype, queries);
  const auto dout = both.random_before_nan(dtype, queries);
  const auto k = both.random_before_nan(dtype, keys), v = both.random_before_nan(dtype, keys);
  const auto out = both.zeros(dtype, queries), dq = both.zeros(dtype, queries);
  const auto dk = both.zeros(dtype, keys), dv = both.zeros(dtype, keys);
  const auto lse = both.zeros(DType::f32, tokens * shape.heads);
  const auto positions = documents(both, packed ? tokens : 0, shape.seq);
  if (packed) shape.documents = count_documents(positions);
  attention.forward(
      {shape, q.on_gpu(), k.on_gpu(), v.on_gpu(), out.on_gpu(), lse.on_gpu(), positions.on_gpu()});
  both.ops().run(both.host_stream(),
                 AttentionForward{shape, q.on_host(), k.on_host(), v.on_host(), out.on_host(),
                                  lse.on_host(), positions.on_host()});
  CHECK(both.difference(out) < allowed_of_attention(dtype));
  CHECK(both.difference(lse) < allowed_of_attention(DType::f32));
  // Both backward passes start from the same forward result, that of the host.
  both.push(out);
  both.push(lse);
  attention.backward({shape, q.on_gpu(), k.on_gpu(), v.on_gpu(), out.on_gpu(), lse.on_gpu(),
                      dout.on_gpu(), dq.on_gpu(), dk.on_gpu(), dv.on_gpu(), positions.on_gpu()});
  both.ops().run(both.host_stream(),
                 AttentionBackward{shape, q.on_host(), k.on_host(), v.on_host(), out.on_host(),
                                   lse.on_host(), dout.on_host(), dq.on_host(), dk.on_host(),
                                   dv.on_host(), positions.on_host()});
  CHECK(both.difference(dq) < allowed_of_attention(dtype));
  CHECK(both.difference(dk) < allowed_of_attention(dtype));
  CHECK(both.difference(dv) < allowed_of_attention(dtype));
}

template <class Attention>
void check_attention(Both& both, const Attention& attention) {
  for (const bool packed : {false, true}) {
    for (const DType dtype : computes) {
      for (const AttentionShape& shape : shapes) {
        check_attention(both, attention, shape, dtype, packed);
      }
    }
  }
}

}  // namespace

TEST_CASE("attention and its gradients, by atoll's own kernels") {
  Both both;
  check_attention(both, Kernels{both});
}

TEST_CASE("attention and its gradients, through Ops") {
  Both both;
  for (const bool deterministic : {false, true}) {
    check_attention(both,
                    ByOps{both, cuda::make_ops(both.gpu(), {.deterministic = deterministic})});
  }
}

TEST_CASE("cuDNN does attention of bf16 in the shapes of models, packed rows too") {
  Both both;
  Scratch scratch(both);
  for (const bool deterministic : {false, true}) {
    cuda::Attention attention(deterministic);
    if (attention.cudnn_version() < 91800) {
      REQUIRE(std::getenv("ATOLL_TEST_CUDNN") == nullptr);
      MESSAGE("skipped: no cuDNN of 9.18 or later");
      return;
    }
    for (const bool packed : {false, true}) {
      if (packed && (deterministic || !does_packed(both))) continue;
      for (const std::int64_t head_dim : {64, 128}) {
        for (const std::int64_t window : {0, 70}) {
          for (const std::int64_t seq : {64, 200, 256}) {
            bool done = true;
            check_attention(both, ByCudnn{both, attention, scratch, done},
                            {2, seq, 4, 2, head_dim, window}, DType::bf16, packed);
            CHECK(done);
          }
        }
      }
    }
  }
}

TEST_CASE(
    "linear layers: forward and both gradients, overwritten and accumulated, with odd sizes") {
  Both both;
  const auto ops = cuda::make_ops(both.gpu());
  const LinearShape linears[] = {{1, 1, 1}, {5, 7, 3}, {33, 64, 40}, {64, 24, 136}};
  for (const DType dtype : computes) {
    for (const LinearShape& shape : linears) {
      for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate}) {
        CAPTURE(atoll::name(dtype));
        CAPTURE(shape.in);
        const auto x = both.random(dtype, shape.tokens * shape.in);
        const auto weight = both.random(dtype, shape.out * shape.in);
        const auto dy = both.random(dtype, shape.tokens * shape.out);
        const auto y = both.zeros(dtype, shape.tokens * shape.out);
        const auto logits = both.zeros(DType::f32, shape.tokens * shape.out);
        const auto residual = both.random(dtype, shape.tokens * shape.out);
        const auto sum = both.zeros(dtype, shape.tokens * shape.out);
        const auto dx = both.random(dtype, shape.tokens * shape.in);
        const auto dweight = both.random(DType::f32, shape.out * shape.in);
        both.run(*ops, [&](Ops& with, atoll::Stream& stream, const auto& on) {
          with.linear_forward(stream, shape, on(x), on(weight), on(y));
          with.linear_forward(stream, shape, on(x), on(weight), on(logits));
          const LinearsForward::Layer layer{shape.out, on(weight), on(sum), on(residual)};
          with.linears_forward(stream, {shape.tokens, shape.in, on(x), {&layer, 1}});
          with.linear_dgrad(stream, shape, on(dy), on(weight), on(dx), mode);
          with.linear_wgrad(stream, shape, on(dy), on(x), on(dweight), mode);
          with.linear_wgrad(stream, shape, on(dy), on(x), {}, WriteMode::none);
        });
        CHECK(both.difference(y) < allowed(dtype));
        CHECK(both.difference(logits) < allowed(DType::f32));
        // The tolerance is doubled, because the CPU rounds twice.
        CHECK(both.difference(sum) < 2 * allowed(dtype));
        CHECK(both.difference(dx) < allowed(dtype));
        CHECK(both.difference(dweight) < allowed(DType::f32));
      }
    }
  }
}

TEST_CASE(
    "a token or a label from outside the vocabulary is an error of the stream that names it") {
  Both both;
  const auto ops = cuda::make_ops(both.gpu());
  constexpr std::int64_t vocab = 11, width = 8, tokens = 5;
  const auto table = both.random(DType::f32, vocab * width);
  const auto out = both.zeros(DType::f32, tokens * width);
  const auto ids = both.ids(tokens, 0, vocab);
  auto stream = both.gpu().stream();
  ops->run(stream, EmbeddingForward{ids.on_gpu(), table.on_gpu(), out.on_gpu(), width});
  ops->check_ids(stream);
  CHECK_NOTHROW(stream.synchronize());
  ids.on_host().as<std::int32_t>()[3] = vocab;
  both.push(ids);
  ops->run(stream, EmbeddingForward{ids.on_gpu(), table.on_gpu(), out.on_gpu(), width});
  ops->check_ids(stream);
  CHECK_THROWS_WITH(stream.synchronize(), "token 11 at position 3 is not in the vocabulary of 11");
  auto other = both.gpu().stream();
  const auto logits = both.random(DType::f32, tokens * vocab), total = both.zeros(DType::f64, 2);
  ops->run(other, CrossEntropy{vocab, ids.on_gpu(), logits.on_gpu(), {}, 1.0f, total.on_gpu()});
  ops->check_ids(other);
  CHECK_THROWS_WITH(other.synchronize(), "label 11 at position 3 is not in the vocabulary of 11");
}

TEST_CASE("wrong arguments are refused at the call, and so is what is too large for the kernels") {
  Both both;
  const auto ops = cuda::make_ops(both.gpu());
  const auto x = both.random(DType::f32, 12);
  CHECK_THROWS_AS(
      ops->linear_forward(both.gpu_stream(), {2, 3, 4}, x.on_gpu(), x.on_gpu(), x.on_gpu()),
      atoll::Error);
  // The second width allows packs of 16 bytes, the first does not.
  for (const std::int64_t wide : {4097, 8200}) {
    const auto row = both.random(DType::f32, wide), inverse = both.zeros(DType::f32, 1);
    CHECK_THROWS_AS(
        ops->run(both.gpu_stream(), RmsNormForward{wide, 1e-5f, row.on_gpu(), row.on_gpu(),
                                                   row.on_gpu(), inverse.on_gpu()}),
        atoll::Error);
  }
  constexpr std::int64_t width = 257;
  const auto q = both.random(DType::f32, width), lse = both.zeros(DType::f32, 1);
  CHECK_THROWS_AS(ops->run(both.gpu_stream(), AttentionForward{{1, 1, 1, 1, width, 0},
                                                               q.on_gpu(),
                                                               q.on_gpu(),
                                                               q.on_gpu(),
                                                               q.on_gpu(),
                                                               lse.on_gpu()}),
                  atoll::Error);
}

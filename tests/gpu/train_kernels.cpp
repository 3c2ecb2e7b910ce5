// Compares the GPU kernels of the trainer with its CPU arithmetic, for shapes that are and that are
// not multiples of a pack, the group of elements that a thread loads at once.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "both.hpp"
#include "model/cuda/cuda_ops.hpp"
#include "model/cuda/kernels.hpp"
#include "model/rope.hpp"

using atoll::DType;
using atoll::View;
using namespace train;
using namespace atoll_test;

TEST_CASE("rms_norm") {
  Both both;
  const auto gpu = cuda::make_ops(both.gpu());
  for (const DType dtype : computes) {
    for (const std::int64_t width : {1, 7, 64, 768, 1000, 4095, 4096, 8192}) {
      for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate, WriteMode::none}) {
        CAPTURE(width);
        constexpr std::int64_t tokens = 37;
        const auto x = both.random(dtype, tokens * width), weight = both.random(dtype, width);
        const auto y = both.zeros(dtype, tokens * width), inverse = both.zeros(DType::f32, tokens);
        const auto dy = both.random(dtype, tokens * width), dx = both.random(dtype, tokens * width);
        const auto dweight = both.random(DType::f32, width);
        both.run(*gpu, [&](Ops& ops, atoll::Stream& stream, const auto& on) {
          ops.run(stream,
                  train::RmsNormForward{width, 1e-5f, on(x), on(weight), on(y), on(inverse)});
        });
        CHECK(both.difference(y) < allowed(dtype));
        CHECK(both.difference(inverse) < allowed(DType::f32));
        const auto dx_mode = mode == WriteMode::none ? WriteMode::overwrite : mode;
        both.run(*gpu, [&](Ops& ops, atoll::Stream& stream, const auto& on) {
          ops.run(stream, train::RmsNormBackward{width, on(x), on(weight), on(inverse), on(dy),
                                                 on(dx), dx_mode, on(dweight), mode});
        });
        CHECK(both.difference(dx) < allowed(dtype));
        CHECK(both.difference(dweight) < allowed(DType::f32));
      }
    }
  }
}

TEST_CASE("biases and their gradients") {
  Both both;
  const auto gpu = cuda::make_ops(both.gpu());
  for (const DType dtype : computes) {
    for (const std::int64_t width : {1, 40, 300}) {
      for (const std::int64_t tokens : {1, 64, 200}) {
        const auto y = both.random(dtype, tokens * width), bias = both.random(dtype, width);
        const auto dbias = both.random(DType::f32, width);
        both.run(*gpu, [&](Ops& ops, atoll::Stream& stream, const auto& on) {
          for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate}) {
            ops.run(stream, train::BiasBackward{width, on(y), on(dbias), mode});
          }
          ops.run(stream, train::AddBias{on(bias), on(y)});
        });
        CHECK(both.difference(dbias) < allowed(DType::f32));
        CHECK(both.difference(y) < allowed(dtype));
      }
    }
  }
}

TEST_CASE("rope there and back") {
  Both both;
  const auto gpu = cuda::make_ops(both.gpu());
  for (const DType dtype : computes) {
    for (const std::int64_t head_dim : {2, 6, 64, 128}) {
      CAPTURE(head_dim);
      constexpr std::int64_t seq = 33, rows = 2, heads = 3;
      const auto table = both.zeros(DType::f32, seq * head_dim);
      const auto x = both.random(dtype, rows * seq * heads * head_dim);
      const std::vector<float> values = rope_table({.head_dim = head_dim}, seq);
      std::ranges::copy(values, table.on_host().as<float>());
      both.push(table);
      const auto positions = both.ids(rows * seq, 0, 1);
      for (int t = 0; t < rows * seq; ++t) {
        const int row = t / static_cast<int>(seq);
        positions.on_host().as<std::int32_t>()[t] = t % static_cast<int>(seq) % (7 + 3 * row);
      }
      both.push(positions);
      for (const RopeDirection direction : {RopeDirection::forward, RopeDirection::inverse}) {
        for (const bool packed : {false, true}) {
          both.run(*gpu, [&](Ops& ops, atoll::Stream& stream, const auto& on) {
            ops.run(stream,
                    train::Rope{seq, heads, head_dim, on(x), on(table), direction,
                                packed ? atoll::ConstView(on(positions)) : atoll::ConstView{}});
          });
          CHECK(both.difference(x) < (packed ? 2 : 1) * allowed(dtype));
        }
      }
    }
  }
}

TEST_CASE("swiglu, in place too") {
  Both both;
  const auto gpu = cuda::make_ops(both.gpu());
  for (const DType dtype : computes) {
    for (const std::int64_t n : {1, 8, 1001, 65536}) {
      CAPTURE(n);
      const auto gate = both.random(dtype, n), up = both.random(dtype, n);
      const auto dout = both.random(dtype, n), out = both.zeros(dtype, n);
      both.run(*gpu, [&](Ops& ops, atoll::Stream& stream, const auto& on) {
        ops.run(stream, train::SwigluForward{on(gate), on(up), on(out)});
        ops.run(stream, train::SwigluBackward{on(gate), on(up), on(dout), on(gate), on(up)});
      });
      CHECK(both.difference(out) < allowed(dtype));
      CHECK(both.difference(gate) < allowed(dtype));
      CHECK(both.difference(up) < allowed(dtype));
    }
  }
}

TEST_CASE("embedding: rows, and their gradient with the same bits every time") {
  Both both;
  const auto gpu = cuda::make_ops(both.gpu());
  for (const DType dtype : computes) {
    for (const std::int64_t width : {1, 24, 520}) {
      for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate}) {
        CAPTURE(width);
        constexpr std::int64_t vocab = 50, tokens = 700;
        const auto ids = both.ids(tokens, 0, vocab);
        const auto table = both.random(dtype, vocab * width);
        const auto out = both.zeros(dtype, tokens * width), dy = both.random(dtype, tokens * width);
        const auto dtable = both.random(DType::f32, vocab * width);
        gpu->run(both.gpu_stream(), train::EmbeddingBackward{vocab, width, ids.on_gpu(),
                                                             dy.on_gpu(), dtable.on_gpu(), mode});
        const auto first = both.bytes(dtable);
        both.push(dtable);
        both.run(*gpu, [&](Ops& ops, atoll::Stream& stream, const auto& on) {
          ops.run(stream, train::EmbeddingForward{on(ids), on(table), on(out), width});
          ops.run(stream,
                  train::EmbeddingBackward{vocab, width, on(ids), on(dy), on(dtable), mode});
        });
        CHECK(both.difference(out) == 0);
        CHECK(both.bytes(dtable) == first);
        CHECK(both.difference(dtable) < allowed(DType::f32));
      }
    }
  }
}

// Padding is a long run of one token, which several blocks sum.
TEST_CASE("embedding: the gradient of many equal tokens") {
  Both both;
  const auto gpu = cuda::make_ops(both.gpu());
  constexpr std::int64_t vocab = 3;
  for (const std::int64_t tokens : {127, 128, 129, 700}) {
    for (const std::int32_t kinds : {1, 2, 3}) {
      for (const std::int64_t width : {5, 24}) {
        for (const WriteMode mode : {WriteMode::overwrite, WriteMode::accumulate}) {
          CAPTURE(tokens);
          CAPTURE(kinds);
          CAPTURE(width);
          const auto ids = both.ids(tokens, 0, kinds);
          const auto dy = both.random(DType::bf16, tokens * width);
          const auto dtable = both.random(DType::f32, vocab * width);
          both.run(*gpu, [&](Ops& ops, atoll::Stream& stream, const auto& on) {
            ops.run(stream,
                    train::EmbeddingBackward{vocab, width, on(ids), on(dy), on(dtable), mode});
          });
          CHECK(both.difference(dtable) < allowed(DType::f32));
        }
      }
    }
  }
}

TEST_CASE("cross_entropy, with ignored labels, with and without a gradient, into the logits too") {
  Both both;
  const auto gpu = cuda::make_ops(both.gpu());
  for (const DType in : computes) {
    for (const DType out : computes) {
      for (const std::int64_t vocab : {3, 1000, 32000}) {
        CAPTURE(vocab);
        constexpr std::int64_t rows = 41;
        const auto labels = both.ids(rows, -2, static_cast<std::int32_t>(vocab));
        const auto logits = both.random(in, rows * vocab), dlogits = both.zeros(out, rows * vocab);
        const auto kept = both.zeros(in, rows * vocab), total = both.zeros(DType::f64, 2);
        for (const bool gradient : {false, true}) {
          // On the host, cross_entropy overwrites f32 logits, so it works on a copy of the logits.
          std::memcpy(kept.host.data(), logits.host.data(), logits.host.bytes());
          both.push(kept);
          both.run(*gpu, [&](Ops& ops, atoll::Stream& stream, const auto& on) {
            const View to = gradient ? on(dlogits) : View{nullptr, 0, out};
            ops.run(stream, train::CrossEntropy{vocab, on(labels), on(kept), to, 0.25f, on(total)});
          });
          CHECK(both.difference(total) < 1e-5);
          if (gradient) CHECK(both.difference(dlogits) < (out == DType::bf16 ? 1e-2 : 1e-5));
        }
        if (in != out) continue;
        gpu->run(both.gpu_stream(), train::CrossEntropy{vocab, labels.on_gpu(), logits.on_gpu(),
                                                        logits.on_gpu(), 0.25f, total.on_gpu()});
        CHECK(both.bytes(logits) == both.bytes(dlogits));
      }
    }
  }
}

TEST_CASE("packed rows: how long documents are, and how much lies before each") {
  Both both;
  for (const std::int64_t tokens : {1, 24, 300, 5000}) {
    CAPTURE(tokens);
    const auto positions = both.ids(tokens, 0, 1);
    auto* const values = positions.on_host().as<std::int32_t>();
    std::vector<std::int32_t> starts;
    for (std::int32_t t = 0; t < tokens; ++t) {
      if (t % 24 == 0 || t % 37 == 5) starts.push_back(t);
      values[t] = t - starts.back();
    }
    both.push(positions);
    const auto count = static_cast<std::int64_t>(starts.size());
    for (const std::int64_t room : {count, count + 3, std::max<std::int64_t>(1, count / 2)}) {
      CAPTURE(room);
      const auto memory =
          both.zeros(DType::i32, static_cast<std::int64_t>(cuda::DocumentIndex::bytes(room) / 4));
      const auto here = cuda::DocumentIndex::in(memory.on_gpu().data, room);
      const auto there = cuda::DocumentIndex::in(memory.on_host().data, room);
      cuda::document_index(both.stream(), positions.on_gpu(), {1, tokens, 4, 2, 16, 0, room}, here);
      for (std::int64_t d = 0; d <= room; ++d) {
        const auto start_of = [&](std::int64_t document) {
          const auto at = static_cast<std::size_t>(document);
          return document < std::min(room, count) ? starts[at] : static_cast<std::int32_t>(tokens);
        };
        if (d < room) there.lengths[d] = start_of(d + 1) - start_of(d);
        there.queries[d] = start_of(d) * 64;
        there.keys[d] = start_of(d) * 32;
        there.statistics[d] = start_of(d) * 4;
      }
      CHECK(both.difference(memory) == 0);
    }
  }
}

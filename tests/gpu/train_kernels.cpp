// Compares the GPU kernels of the trainer with its CPU arithmetic, for shapes that are and that are
// not multiples of a pack, the group of elements that a thread loads at once.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "both.hpp"
#include "model/cuda/kernels.hpp"
#include "model/rope.hpp"

using atoll::DType;
using atoll::View;
using namespace train;
using namespace atoll_test;

TEST_CASE("rms_norm") {
  Both both;
  for (const DType dtype : computes) {
    for (const std::int64_t width : {1, 7, 64, 768, 1000, 4095, 4096, 8192}) {
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
            both.zeros(DType::f32, static_cast<std::int64_t>(cuda::rms_norm_partials(
                                       static_cast<std::int64_t>(inverse.on_host().count), width)));
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

TEST_CASE("biases and their gradients") {
  Both both;
  for (const DType dtype : computes) {
    for (const std::int64_t width : {1, 40, 300}) {
      for (const std::int64_t tokens : {1, 64, 200}) {
        const auto y = both.random(dtype, tokens * width), bias = both.random(dtype, width);
        const auto dbias = both.random(DType::f32, width);
        const auto partials =
            both.zeros(DType::f32, static_cast<std::int64_t>(cuda::bias_partials(tokens, width)));
        for (const WriteMode mode : {WriteMode::accumulate, WriteMode::overwrite}) {
          cuda::bias_backward(both.stream(), {width, y.on_gpu(), dbias.on_gpu(), mode},
                              partials.on_gpu().as<float>());
          both.ops().bias_backward(both.host_stream(), {width, y.on_host(), dbias.on_host(), mode});
          CHECK(both.difference(dbias) < allowed(DType::f32));
        }
        cuda::add_bias(both.stream(), bias.on_gpu(), y.on_gpu());
        both.ops().add_bias(both.host_stream(), bias.on_host(), y.on_host());
        CHECK(both.difference(y) < allowed(dtype));
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
        cuda::rope(both.stream(), {seq, heads, head_dim, x.on_gpu(), table.on_gpu(), direction});
        both.ops().rope(both.host_stream(),
                        {seq, heads, head_dim, x.on_host(), table.on_host(), direction});
        CHECK(both.difference(x) < allowed(dtype));
        cuda::rope(both.stream(), {seq, heads, head_dim, x.on_gpu(), table.on_gpu(), direction,
                                   positions.on_gpu()});
        both.ops().rope(both.host_stream(), {seq, heads, head_dim, x.on_host(), table.on_host(),
                                             direction, positions.on_host()});
        CHECK(both.difference(x) < 2 * allowed(dtype));
      }
    }
  }
}

TEST_CASE("swiglu, in place too") {
  Both both;
  for (const DType dtype : computes) {
    for (const std::int64_t n : {1, 8, 1001, 65536}) {
      CAPTURE(n);
      const auto gate = both.random(dtype, n), up = both.random(dtype, n);
      const auto dout = both.random(dtype, n), out = both.zeros(dtype, n);
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
        const atoll::Buffer scratch = both.gpu().allocate(cuda::embedding_scratch(tokens, width));
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
        // The invalid id is at the sixth position, because the kernel counts from 1.
        CHECK(told[1] == 6);
      }
    }
  }
}

// Padding is a long run of one token, which several blocks sum.
TEST_CASE("embedding: the gradient of many equal tokens") {
  Both both;
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
          const auto bad = both.zeros(DType::i32, 2);
          const atoll::Buffer scratch = both.gpu().allocate(cuda::embedding_scratch(tokens, width));
          cuda::embedding_backward(
              both.stream(), {vocab, width, ids.on_gpu(), dy.on_gpu(), dtable.on_gpu(), mode},
              scratch.data(), reinterpret_cast<cuda::BadId*>(bad.on_gpu().data));
          both.ops().embedding_backward(both.host_stream(), {vocab, width, ids.on_host(),
                                                             dy.on_host(), dtable.on_host(), mode});
          CHECK(both.difference(dtable) < allowed(DType::f32));
        }
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
          // On the host, cross_entropy overwrites f32 logits, so it works on a copy of the logits.
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

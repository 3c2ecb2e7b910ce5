#include "model/cuda/fp8_linears.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "atoll/cuda/runtime.hpp"
#include "fail.hpp"
#include "model/cuda/fp8.hpp"

namespace train::cuda {
namespace {

using atoll::ConstView;

constexpr std::size_t fp8_alignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + fp8_alignment - 1) / fp8_alignment * fp8_alignment;
}
std::size_t elements(std::int64_t rows, std::int64_t columns) {
  return aligned(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
}

// Throws Error(unsupported) unless extents and alignment of a matrix suit products in fp8.
void require_fits(std::string_view what, ConstView matrix, std::int64_t rows,
                  std::int64_t columns) {
  constexpr std::uintptr_t bytes = 16;
  if (rows % fp8_granularity == 0 && columns % fp8_granularity == 0 &&
      reinterpret_cast<std::uintptr_t>(matrix.data) % bytes == 0) {
    return;
  }
  fail(ErrorCode::unsupported,
       "products in fp8: {} is {} x {} at {}: the extents must be multiples of {}, and the address "
       "of {}",
       what, rows, columns, matrix.data, fp8_granularity, bytes);
}

void require_bf16(ConstView x) {
  if (x.dtype == atoll::DType::bf16) return;
  fail(ErrorCode::unsupported, "products in fp8: the layers are in {}, and must be in bf16",
       atoll::name(x.dtype));
}

template <class Args>
std::int64_t widest(const Args& args) {
  std::int64_t most = 0;
  for (const auto& layer : args.layers) most = std::max(most, layer.out);
  return most;
}

// Scratch memory: the scales of a group, then copies of its matrices.
class Memory {
 public:
  Memory(cudaStream_t stream, void* scratch, std::size_t matrices)
      : scales_(static_cast<Fp8Scale*>(scratch)),
        next_(static_cast<std::byte*>(scratch) + scales_bytes(matrices)) {
    atoll::cuda::check(cudaMemsetAsync(scratch, 0, matrices * sizeof(Fp8Scale), stream),
                       "cudaMemsetAsync");
  }
  static std::size_t scales_bytes(std::size_t matrices) {
    return aligned(matrices * sizeof(Fp8Scale));
  }
  Fp8Scale* scales() { return scales_; }
  void* copy(std::int64_t rows, std::int64_t columns) {
    void* const here = next_;
    next_ += elements(rows, columns);
    return here;
  }

 private:
  Fp8Scale* scales_;
  std::byte* next_;
};

}  // namespace

std::size_t fp8_scratch(const LinearsForward& args) {
  return Memory::scales_bytes(1 + args.layers.size()) + elements(args.tokens, args.in) +
         elements(widest(args), args.in);
}

std::size_t fp8_scratch(const LinearsBackward& args) {
  return Memory::scales_bytes(1 + 2 * args.layers.size()) + elements(args.tokens, args.in) +
         2 * elements(args.tokens, widest(args)) + elements(widest(args), args.in);
}

std::size_t fp8_scratch(const LargestShapes& shapes) {
  const AttentionShape& heads = shapes.attention;
  const std::int64_t tokens = heads.rows * heads.seq;
  const std::int64_t queries = heads.heads * heads.head_dim, keys = heads.kv_heads * heads.head_dim;
  const auto bytes = [&](std::int64_t in, std::initializer_list<std::int64_t> outs) {
    std::vector<LinearsBackward::Layer> layers;
    for (const std::int64_t out : outs) layers.push_back({out, {}, {}, {}, WriteMode::overwrite});
    // Backward needs more than forward.
    return fp8_scratch(LinearsBackward{tokens, in, {}, {}, layers});
  };
  return std::max({bytes(shapes.width, {queries, keys, keys}), bytes(queries, {shapes.width}),
                   bytes(shapes.width, {shapes.ffn, shapes.ffn}),
                   bytes(shapes.ffn, {shapes.width})});
}

void fp8_linears_forward(cudaStream_t stream, MatMul& matmul, const LinearsForward& args,
                         void* scratch) {
  require_bf16(args.x);
  require_fits("x", args.x, args.tokens, args.in);
  for (const LinearsForward::Layer& layer : args.layers) {
    require_fits("the weight", layer.weight, layer.out, args.in);
    require_fits("y", layer.y, args.tokens, layer.out);
    require_fits("the residual", layer.residual, args.tokens, layer.out);
  }
  Memory memory(stream, scratch, 1 + args.layers.size());
  std::vector<ConstView> matrices{args.x};
  for (const LinearsForward::Layer& layer : args.layers) matrices.push_back(layer.weight);
  Fp8Scale* const x_scale = memory.scales();
  find_largest(stream, matrices, x_scale);
  void* const x = memory.copy(args.tokens, args.in);
  to_fp8(stream, {args.x, args.tokens, args.in, Fp8::e4m3, x_scale, x});
  void* const weight = memory.copy(widest(args), args.in);
  Fp8Scale* scale = x_scale;
  for (const LinearsForward::Layer& layer : args.layers) {
    to_fp8(stream, {layer.weight, layer.out, args.in, Fp8::e4m3, ++scale, weight});
    matmul.run(stream,
               {args.tokens, layer.out, args.in, Operand::plain, Operand::transposed, args.x.dtype,
                layer.y.dtype, WriteMode::overwrite},
               {x, &x_scale->inverse, Fp8::e4m3}, {weight, &scale->inverse, Fp8::e4m3},
               layer.y.data, layer.residual.data);
  }
}

// Products need operands whose rows run along the summed index. So dx = dy W takes W transposed,
// and dW = dy^T x takes both dy and x transposed.
void fp8_linears_backward(cudaStream_t stream, MatMul& matmul, const LinearsBackward& args,
                          void* scratch) {
  require_bf16(args.x);
  require_fits("x", args.x, args.tokens, args.in);
  require_fits("dx", args.dx, args.tokens, args.in);
  for (const LinearsBackward::Layer& layer : args.layers) {
    require_fits("dy", layer.dy, args.tokens, layer.out);
    require_fits("the weight", layer.weight, layer.out, args.in);
    require_fits("dweight", layer.dweight, layer.out, args.in);
  }
  const std::int64_t most = widest(args);
  Memory memory(stream, scratch, 1 + 2 * args.layers.size());
  void* const x = memory.copy(args.in, args.tokens);
  void* const dy = memory.copy(args.tokens, most);
  void* const dy_transposed = memory.copy(most, args.tokens);
  void* const weight = memory.copy(args.in, most);
  const bool trains = std::ranges::any_of(args.layers, [](const LinearsBackward::Layer& layer) {
    return layer.dweight_mode != WriteMode::none;
  });
  std::vector<ConstView> matrices{trains ? args.x : ConstView{}};
  for (const LinearsBackward::Layer& layer : args.layers) {
    matrices.insert(matrices.end(), {layer.dy, layer.weight});
  }
  Fp8Scale* const x_scale = memory.scales();
  find_largest(stream, matrices, x_scale);
  if (trains) to_fp8(stream, {args.x, args.tokens, args.in, Fp8::e4m3, x_scale, nullptr, x});
  Fp8Scale* dy_scale = x_scale + 1;
  WriteMode mode = WriteMode::overwrite;
  for (const LinearsBackward::Layer& layer : args.layers) {
    Fp8Scale* const weight_scale = dy_scale + 1;
    const bool trained = layer.dweight_mode != WriteMode::none;
    to_fp8(stream, {layer.dy, args.tokens, layer.out, Fp8::e5m2, dy_scale, dy,
                    trained ? dy_transposed : nullptr});
    to_fp8(stream, {layer.weight, layer.out, args.in, Fp8::e4m3, weight_scale, nullptr, weight});
    if (trained) {
      matmul.run(stream,
                 {layer.out, args.in, args.tokens, Operand::plain, Operand::transposed,
                  args.x.dtype, layer.dweight.dtype, layer.dweight_mode},
                 {dy_transposed, &dy_scale->inverse, Fp8::e5m2}, {x, &x_scale->inverse, Fp8::e4m3},
                 layer.dweight.data);
    }
    matmul.run(stream,
               {args.tokens, args.in, layer.out, Operand::plain, Operand::transposed, args.x.dtype,
                args.dx.dtype, mode},
               {dy, &dy_scale->inverse, Fp8::e5m2}, {weight, &weight_scale->inverse, Fp8::e4m3},
               args.dx.data);
    mode = WriteMode::accumulate;
    dy_scale += 2;
  }
}

}  // namespace train::cuda

// Single-threaded kernels over a range of rows, columns or heads; make_ops() distributes the ranges
// over threads. Each kernel is compiled for several instruction sets and selected at run time.
// Callers have checked the arguments.
#pragma once

#include <cstddef>

#include "model/cpu/bf16_product.hpp"
#include "model/ops.hpp"

// Exports a kernel and defines the function that this header declares for it, which calls the best
// version for the processor.
#define ATOLL_DISPATCH(result, name, parameters, ...) \
  HWY_EXPORT(name);                                   \
  result name parameters { return HWY_DYNAMIC_DISPATCH(name)(__VA_ARGS__); }

namespace train::cpu {

struct Range {
  std::size_t first, last;  // from `first` up to, but not including, `last`
};

// Converts a count, which must not be negative, to size_t.
inline std::size_t to_size(std::int64_t value) noexcept { return static_cast<std::size_t>(value); }

void add(atoll::ConstView a, atoll::ConstView b, atoll::View out, Range elements);
void scale(const Scale& args, Range elements);
void add_bias(const AddBias& args, Range rows);
// Sums these columns of all rows, in ascending order.
void bias_backward(const BiasBackward& args, Range columns);
void swiglu_forward(const SwigluForward& args, Range elements);
void swiglu_backward(const SwigluBackward& args, Range elements);
void rope(const Rope& args, Range tokens);
// Converts between f32 and bf16.
void convert(atoll::ConstView from, atoll::View to, Range elements);

// Overwrites or accumulates the given columns in every row of the embedding table's gradient. Adds
// tokens in ascending order.
void embedding_backward(const EmbeddingBackward& args, Range columns);

void rms_norm_forward(const RmsNormForward& args, Range tokens);
// Computes dx of the tokens. `partial` (args.width floats) receives their share of dweight, unless
// it is null.
void rms_norm_backward(const RmsNormBackward& args, Range tokens, float* partial);
// Sums `count` consecutive partial sums, in order, into these columns of dweight.
void rms_norm_weight(const RmsNormBackward& args, const float* partials, std::size_t count,
                     Range columns);

// Writes dlogits and the loss of each token to row_loss, 0 for ignored labels.
void cross_entropy(const CrossEntropy& args, Range tokens, double* row_loss);

// One sequence and one key-value head, with all query heads that share it.
struct AttentionTask {
  std::size_t row, kv_head;
  // Aligned to 64 bytes; as many floats as the function below with `_scratch` in its name returns.
  float* scratch;
  Bf16Instructions bf16 = Bf16Instructions::none;
};
// Products in f32, for f32 or bf16 arguments.
std::size_t attention_forward_scratch(const AttentionShape& shape);
std::size_t attention_backward_scratch(const AttentionShape& shape);
void attention_forward(const AttentionForward& args, const AttentionTask& task);
void attention_backward(const AttentionBackward& args, const AttentionTask& task);
// Products in bf16, for bf16 arguments and processors with bf16 instructions.
std::size_t attention_forward_scratch_bf16(const AttentionShape& shape);
std::size_t attention_backward_scratch_bf16(const AttentionShape& shape);
void attention_forward_bf16(const AttentionForward& args, const AttentionTask& task);
void attention_backward_bf16(const AttentionBackward& args, const AttentionTask& task);

}  // namespace train::cpu

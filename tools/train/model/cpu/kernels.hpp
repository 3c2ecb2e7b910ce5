// Single-threaded kernels over a range of rows (or columns, or heads); CpuOps cuts the work and
// runs the ranges on threads. Each is compiled for several instruction sets and the best one is
// chosen when the program runs. Arguments have been checked.
#pragma once

#include <cstddef>

#include "model/ops.hpp"

namespace train::cpu {

struct Range {
  std::size_t first, last;  // [first, last)
};

// Elements, tokens or rows of the whole view.
inline std::size_t to_size(std::int64_t value) noexcept { return static_cast<std::size_t>(value); }

void add(atoll::ConstView a, atoll::ConstView b, atoll::View out, Range elements);
void swiglu_forward(atoll::ConstView gate, atoll::ConstView up, atoll::View out, Range elements);
void swiglu_backward(const SwigluBackward& args, Range elements);
void rope(const Rope& args, Range tokens);
void convert(atoll::ConstView from, atoll::View to, Range elements);  // f32, bf16 -> f32, bf16

// Sets or adds columns [first, last) of all vocabulary rows, tokens in ascending order.
void embedding_backward(const EmbeddingBackward& args, Range columns);

void rms_norm_forward(const RmsNormForward& args, Range tokens);
// dx of the tokens; `partial` (args.width floats) becomes their part of dweight unless null.
void rms_norm_backward(const RmsNormBackward& args, Range tokens, float* partial);
// dweight columns from `count` partials that follow each other, in order.
void rms_norm_weight(const RmsNormBackward& args, const float* partials, std::size_t count,
                     Range columns);

// Loss of each token of the range into row_loss (0 where ignored), and dlogits.
void cross_entropy(const CrossEntropy& args, Range tokens, double* row_loss);

// One sequence and one key-value head with all query heads that share it.
struct AttentionTask {
  std::size_t row, kv_head;
  float* scratch;  // attention_*_scratch floats, 64-byte aligned
};
std::size_t attention_forward_scratch(const AttentionShape& shape);
std::size_t attention_backward_scratch(const AttentionShape& shape);
void attention_forward(const AttentionForward& args, const AttentionTask& task);
void attention_backward(const AttentionBackward& args, const AttentionTask& task);

}  // namespace train::cpu

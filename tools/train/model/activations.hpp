// Activations that forward keeps for backward: one allocation for the largest batch, cut into
// views. A step allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "atoll/device.hpp"
#include "model/config.hpp"
#include "model/ops.hpp"

namespace train {

// `rows` sequences of `seq` tokens, right-padded. Views are i32 [rows * seq] on the device.
// labels[t] is the target of position t; negative labels are ignored. Empty positions (ops.hpp)
// mean that each row is one document.
struct Batch {
  std::int64_t rows = 0;
  std::int64_t seq = 0;
  atoll::ConstView tokens, labels;
  atoll::ConstView positions = {};
  std::int64_t documents = 0;  // number of documents in all rows; 0 without positions
  std::int64_t size() const noexcept { return rows * seq; }
};

// Activation checkpointing. If queries are as wide as `hidden`, a layer keeps per token: 5 hidden +
// 3 ffn + keys and values (none), 3 hidden + 2 ffn + keys and values (selective), or its input
// (full).
enum class Recompute {
  none,       // every layer keeps its activations
  selective,  // backward recomputes norms and SwiGLU, which need no matrix product
  full        // backward runs each layer's forward again from its input
};

// Default number of tokens whose logits exist at once.
std::int64_t usual_head_rows(atoll::DeviceKind device);

struct ActivationPlan {
  std::int64_t max_tokens = 0;  // largest number of tokens in a batch (rows * seq)
  std::int64_t max_seq = 0;     // number of tokens in the longest sequence
  atoll::DType compute = atoll::DType::f32;
  Recompute recompute = Recompute::none;
  std::int64_t head_rows = 512;  // tokens per block of logits
};

// Returns the shapes in the largest micro batch for which the plan has memory.
LargestShapes largest_shapes(const ModelConfig& config, const ActivationPlan& plan);

// Activations of one layer for the current batch. Backward overwrites gate, up and hidden.
struct LayerActivations {
  atoll::View inverse1, normed1, q, k, v, attended, lse;
  // With norms of heads: queries and keys before their norms, and what their backward needs.
  atoll::View plain_q, plain_k, q_inverse, k_inverse;
  // alpha / rank * x A^T of the adapters, [tokens, rank], in the order of projections(); backward
  // overwrites it with its gradient.
  std::array<atoll::View, 7> adapted;
  atoll::View middle;  // residual stream between attention and feed-forward
  atoll::View inverse2, normed2, gate, up, hidden;
};

// Scratch that the backward passes of all layers share.
struct BackwardScratch {
  atoll::View dattended, dq, dk, dv, dnormed;
};

struct HeadActivations {
  atoll::View normed, inverse, dnormed;
  // Logits of one block of tokens: [head_rows, vocab] in the compute dtype. Backward overwrites
  // them with their gradient.
  atoll::View logits;
};

// Must outlive all work enqueued on it, even if an Error ends a step early.
class Activations {
 public:
  // Throws Error(invalid_argument) for an invalid plan. Decoder::make_activations() also fills the
  // rotary table.
  Activations(const ModelConfig& config, const ActivationPlan& plan, const atoll::Device& device);

  // Bytes that the constructor allocates.
  static std::size_t bytes_for(const ModelConfig& config, const ActivationPlan& plan);

  // Throws Error(invalid_argument) if the batch exceeds the plan.
  void require_fits(const Batch& batch) const;

  // Input of layer n; boundary(layers) is the last layer's output. [tokens, hidden], in the
  // compute dtype.
  atoll::View boundary(std::int64_t n, const Batch& batch) const;
  LayerActivations layer(std::int64_t n, const Batch& batch) const;
  BackwardScratch backward(const Batch& batch) const;
  HeadActivations head(const Batch& batch) const;
  // Gradient at the boundary that backward has reached. [tokens, hidden], in the compute dtype.
  atoll::View gradient(const Batch& batch) const;
  atoll::View rope_table() const { return rope_table_; }
  // f64 [2] on the device: sum of losses and number of valid labels since Decoder::begin().
  atoll::View total() const { return total_; }

  const ActivationPlan& plan() const noexcept { return plan_; }
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  Activations(const ModelConfig& config, const ActivationPlan& plan);
  // Sets the sizes of all views that need memory, without allocating it, and returns these views.
  std::vector<atoll::View*> sized_views();
  atoll::View cut(atoll::View view, const Batch& batch) const;

  ModelConfig config_;
  ActivationPlan plan_;
  atoll::Buffer memory_;
  std::vector<atoll::View> boundaries_;
  // One entry for each layer. With full recomputation, all layers share a single entry.
  std::vector<LayerActivations> layers_;
  BackwardScratch backward_;
  HeadActivations head_;
  atoll::View gradient_, rope_table_, total_;
};

}  // namespace train

// Everything that forward leaves for backward, planned up front: one allocation for the largest
// batch, cut into views. Nothing is allocated during a step.
#pragma once

#include <cstdint>
#include <vector>

#include "atoll/device.hpp"
#include "model/config.hpp"
#include "model/ops.hpp"

namespace train {

// `rows` sequences of `seq` tokens, right padded. All views are i32 [rows * seq] on the device.
// labels[t] is the target of token t; negative: none. positions (ops.hpp) may be empty, where each
// row is one document.
struct Batch {
  std::int64_t rows = 0;
  std::int64_t seq = 0;
  atoll::ConstView tokens, labels;
  atoll::ConstView positions = {};
  std::int64_t documents = 0;  // with positions: how many there are, in all rows
  std::int64_t size() const noexcept { return rows * seq; }
};

// Activation checkpointing. Per token of a layer, with queries as wide as `hidden`: none keeps 5
// hidden + 3 ffn + keys and values, selective 3 hidden + 2 ffn + keys and values, full nothing but
// the layer's input.
enum class Recompute {
  none,       // every layer keeps its activations
  selective,  // but what follows from the rest without a matrix product: both norms and SwiGLU
  full        // only the inputs of layers are kept; backward runs the layer's forward pass again
};

// How many tokens' logits there should be at a time.
std::int64_t usual_head_rows(atoll::DeviceKind device);

struct ActivationPlan {
  std::int64_t max_tokens = 0;  // rows * seq of the largest batch
  std::int64_t max_seq = 0;     // longest sequence
  atoll::DType compute = atoll::DType::f32;
  Recompute recompute = Recompute::none;
  std::int64_t head_rows = 512;  // tokens whose logits exist at a time
};

// Of a model whose micro batches are as the plan has them at most.
LargestShapes largest_shapes(const ModelConfig& config, const ActivationPlan& plan);

// What one layer keeps, cut to the tokens of the current batch. Backward overwrites gate, up and
// hidden.
struct LayerActivations {
  atoll::View inverse1, normed1, q, k, v, attended, lse;
  atoll::View middle;  // after attention, before the feed-forward half
  atoll::View inverse2, normed2, gate, up, hidden;
};

// Of the backward pass of any layer.
struct BackwardScratch {
  atoll::View dattended, dq, dk, dv, dnormed;
};

struct HeadActivations {
  atoll::View normed, inverse, dnormed;
  atoll::View logits;  // compute [head_rows, vocab]; then, in their place, their gradient
};

// Must outlive the work that was enqueued on it, also when an Error ends a step early.
class Activations {
 public:
  // Throws Error(invalid_argument) for a plan that makes no sense. Decoder::make_activations also
  // fills the rotary table.
  Activations(const ModelConfig& config, const ActivationPlan& plan, const atoll::Device& device);

  // What the constructor would allocate.
  static std::size_t bytes_for(const ModelConfig& config, const ActivationPlan& plan);

  // Throws Error(invalid_argument) when the batch is larger than the plan.
  void require_fits(const Batch& batch) const;

  // Input of layer n; boundary(layers) is the output of the last. compute [tokens, hidden].
  atoll::View boundary(std::int64_t n, const Batch& batch) const;
  LayerActivations layer(std::int64_t n, const Batch& batch) const;
  BackwardScratch backward(const Batch& batch) const;
  HeadActivations head(const Batch& batch) const;
  // Gradient of the boundary that backward has reached. compute [tokens, hidden].
  atoll::View gradient(const Batch& batch) const;
  atoll::View rope_table() const { return rope_table_; }
  // f64 [2] on the device: sum of the losses and number of valid labels since Decoder::begin.
  atoll::View total() const { return total_; }

  const ActivationPlan& plan() const noexcept { return plan_; }
  std::size_t bytes() const noexcept { return memory_.bytes(); }

 private:
  // One view of the plan and what it needs.
  struct Piece {
    atoll::View* view;
    std::int64_t count;
    atoll::DType dtype;
    std::size_t aligned_bytes() const;
  };
  Activations(const ModelConfig& config, const ActivationPlan& plan);
  std::vector<Piece> pieces();

  ModelConfig config_;
  ActivationPlan plan_;
  LayerActivations shared_;  // what selective recomputation has once for all layers
  atoll::Buffer memory_;
  std::vector<atoll::View> boundaries_;
  std::vector<LayerActivations> layers_;  // one where all of it is recomputed
  BackwardScratch backward_;
  HeadActivations head_;
  atoll::View gradient_, rope_table_, total_;
};

}  // namespace train

#include "model/layer.hpp"

namespace train {
namespace {

using atoll::ConstView;
using atoll::View;

constexpr std::string_view norm1 = "input_layernorm.weight";
constexpr std::string_view norm2 = "post_attention_layernorm.weight";

// The weight of a linear layer y = x W^T.
struct Linear {
  std::string_view name;
  std::int64_t in, out;
};

class Layer {
 public:
  explicit Layer(const LayerOfStep& of)
      : config_(of.config),
        ops_(of.ops),
        step_(of.step),
        weights_(of.weights),
        attention_{step_.batch.rows, step_.batch.seq,        config_.heads,        config_.kv_heads,
                   config_.head_dim, config_.sliding_window, step_.batch.documents},
        input_(step_.activations.boundary(of.index, step_.batch)),
        output_(step_.activations.boundary(of.index + 1, step_.batch)),
        gradient_(step_.activations.gradient(step_.batch)),
        kept_(step_.activations.layer(of.index, step_.batch)),
        scratch_(step_.activations.backward(step_.batch)) {}

  void normalize_input() const { normalize(input_, norm1, kept_.normed1, kept_.inverse1); }
  void normalize_middle() const { normalize(kept_.middle, norm2, kept_.normed2, kept_.inverse2); }
  void swiglu() const { ops_.swiglu_forward(step_.stream, kept_.gate, kept_.up, kept_.hidden); }

  void forward_attention() const {
    normalize_input();
    linear(q_, kept_.normed1, kept_.q);
    linear(k_, kept_.normed1, kept_.k);
    linear(v_, kept_.normed1, kept_.v);
    rope(kept_.q, config_.heads, RopeDirection::forward);
    rope(kept_.k, config_.kv_heads, RopeDirection::forward);
    ops_.attention_forward(step_.stream, {attention_, kept_.q, kept_.k, kept_.v, kept_.attended,
                                          kept_.lse, step_.batch.positions});
    linear_residual(o_, kept_.attended, input_, kept_.middle);
  }

  void forward_feed_forward() const {
    normalize_middle();
    linear(gate_, kept_.normed2, kept_.gate);
    linear(up_, kept_.normed2, kept_.up);
    swiglu();
    linear_residual(down_, kept_.hidden, kept_.middle, output_);
  }

  void backward_feed_forward(const GradientLookup& gradients) const {
    // The gradients of hidden, gate and up overwrite these activations.
    weight_gradient(gradients, down_, gradient_, kept_.hidden);
    input_gradient(down_, gradient_, kept_.hidden, WriteMode::overwrite);
    ops_.swiglu_backward(step_.stream, {kept_.gate, kept_.up, kept_.hidden, kept_.gate, kept_.up});
    weight_gradient(gradients, gate_, kept_.gate, kept_.normed2);
    weight_gradient(gradients, up_, kept_.up, kept_.normed2);
    input_gradient(gate_, kept_.gate, scratch_.dnormed, WriteMode::overwrite);
    input_gradient(up_, kept_.up, scratch_.dnormed, WriteMode::accumulate);
    normalize_backward(gradients(norm2), kept_.middle, norm2, kept_.inverse2);
  }

  void backward_attention(const GradientLookup& gradients) const {
    weight_gradient(gradients, o_, gradient_, kept_.attended);
    input_gradient(o_, gradient_, scratch_.dattended, WriteMode::overwrite);
    ops_.attention_backward(step_.stream, {attention_, kept_.q, kept_.k, kept_.v, kept_.attended,
                                           kept_.lse, scratch_.dattended, scratch_.dq, scratch_.dk,
                                           scratch_.dv, step_.batch.positions});
    rope(scratch_.dq, config_.heads, RopeDirection::inverse);
    rope(scratch_.dk, config_.kv_heads, RopeDirection::inverse);
    weight_gradient(gradients, q_, scratch_.dq, kept_.normed1);
    weight_gradient(gradients, k_, scratch_.dk, kept_.normed1);
    weight_gradient(gradients, v_, scratch_.dv, kept_.normed1);
    input_gradient(q_, scratch_.dq, scratch_.dnormed, WriteMode::overwrite);
    input_gradient(k_, scratch_.dk, scratch_.dnormed, WriteMode::accumulate);
    input_gradient(v_, scratch_.dv, scratch_.dnormed, WriteMode::accumulate);
    normalize_backward(gradients(norm1), input_, norm1, kept_.inverse1);
  }

 private:
  void normalize(ConstView x, std::string_view name, View y, View inverse) const {
    ops_.rms_norm_forward(step_.stream, {config_.hidden, static_cast<float>(config_.rms_eps), x,
                                         weights_(name), y, inverse});
  }
  void normalize_backward(const Gradient& dweight, ConstView x, std::string_view name,
                          ConstView inverse) const {
    ops_.rms_norm_backward(step_.stream,
                           {config_.hidden, x, weights_(name), inverse, scratch_.dnormed, gradient_,
                            WriteMode::accumulate, dweight.view, dweight.mode});
  }
  void rope(View x, std::int64_t heads, RopeDirection direction) const {
    ops_.rope(step_.stream, {step_.batch.seq, heads, config_.head_dim, x,
                             step_.activations.rope_table(), direction, step_.batch.positions});
  }
  LinearShape shape(const Linear& which) const { return {step_.batch.size(), which.in, which.out}; }
  void linear(const Linear& which, ConstView x, View y) const {
    ops_.linear_forward(step_.stream, shape(which), x, weights_(which.name), y);
  }
  void linear_residual(const Linear& which, ConstView x, ConstView residual, View y) const {
    ops_.linear_residual_forward(step_.stream, shape(which), x, weights_(which.name), residual, y);
  }
  void weight_gradient(const GradientLookup& gradients, const Linear& which, ConstView dy,
                       ConstView x) const {
    const Gradient dweight = gradients(which.name);
    ops_.linear_wgrad(step_.stream, shape(which), dy, x, dweight.view, dweight.mode);
  }
  void input_gradient(const Linear& which, ConstView dy, View dx, WriteMode mode) const {
    ops_.linear_dgrad(step_.stream, shape(which), dy, weights_(which.name), dx, mode);
  }

  const ModelConfig& config_;
  Ops& ops_;
  const Step& step_;
  const WeightLookup& weights_;
  AttentionShape attention_;
  View input_, output_, gradient_;
  LayerActivations kept_;
  BackwardScratch scratch_;
  Linear q_{"self_attn.q_proj.weight", config_.hidden, config_.query_width()};
  Linear k_{"self_attn.k_proj.weight", config_.hidden, config_.kv_width()};
  Linear v_{"self_attn.v_proj.weight", config_.hidden, config_.kv_width()};
  Linear o_{"self_attn.o_proj.weight", config_.query_width(), config_.hidden};
  Linear gate_{"mlp.gate_proj.weight", config_.hidden, config_.ffn};
  Linear up_{"mlp.up_proj.weight", config_.hidden, config_.ffn};
  Linear down_{"mlp.down_proj.weight", config_.ffn, config_.hidden};
};

}  // namespace

void forward_layer(const LayerOfStep& of) {
  const Layer layer(of);
  layer.forward_attention();
  layer.forward_feed_forward();
}

void backward_layer(const LayerOfStep& of, const GradientLookup& gradients) {
  const Layer layer(of);
  const Recompute recompute = of.step.activations.plan().recompute;
  if (recompute == Recompute::full) forward_layer(of);
  if (recompute == Recompute::selective) {
    layer.normalize_middle();
    layer.swiglu();
  }
  layer.backward_feed_forward(gradients);
  if (recompute == Recompute::selective) layer.normalize_input();
  layer.backward_attention(gradients);
}

}  // namespace train

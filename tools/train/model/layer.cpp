#include "model/layer.hpp"

namespace train {

using atoll::ConstView;
using atoll::View;

namespace {
constexpr std::string_view norm1 = "input_layernorm.weight";
constexpr std::string_view norm2 = "post_attention_layernorm.weight";
}  // namespace

Layer::Layer(const ModelConfig& config, Ops& ops, const Step& step, std::int64_t index)
    : config_(config),
      ops_(ops),
      step_(step),
      tokens_(step.batch.size()),
      attention_{step.batch.rows, step.batch.seq,        config.heads,        config.kv_heads,
                 config.head_dim, config.sliding_window, step.batch.documents},
      input_(step.activations.boundary(index, step.batch)),
      output_(step.activations.boundary(index + 1, step.batch)),
      gradient_(step.activations.gradient(step.batch)),
      kept_(step.activations.layer(index, step.batch)),
      scratch_(step.activations.backward(step.batch)),
      q_{"self_attn.q_proj.weight", config.hidden, config.query_width()},
      k_{"self_attn.k_proj.weight", config.hidden, config.kv_width()},
      v_{"self_attn.v_proj.weight", config.hidden, config.kv_width()},
      o_{"self_attn.o_proj.weight", config.query_width(), config.hidden},
      gate_{"mlp.gate_proj.weight", config.hidden, config.ffn},
      up_{"mlp.up_proj.weight", config.hidden, config.ffn},
      down_{"mlp.down_proj.weight", config.ffn, config.hidden} {}

void Layer::forward(const WeightLookup& weights) const {
  forward_attention(weights);
  forward_feed_forward(weights);
}

void Layer::backward(const WeightLookup& weights, const GradientLookup& gradients) const {
  const bool again = step_.activations.plan().recompute == Recompute::selective;
  if (again) {
    normalize_middle(weights);
    ops_.swiglu_forward(step_.stream, kept_.gate, kept_.up, kept_.hidden);
  }
  backward_feed_forward(weights, gradients);
  if (again) normalize_input(weights);
  backward_attention(weights, gradients);
}

void Layer::normalize_input(const WeightLookup& weights) const {
  ops_.rms_norm_forward(step_.stream, {config_.hidden, static_cast<float>(config_.rms_eps), input_,
                                       weights(norm1), kept_.normed1, kept_.inverse1});
}

void Layer::normalize_middle(const WeightLookup& weights) const {
  ops_.rms_norm_forward(step_.stream,
                        {config_.hidden, static_cast<float>(config_.rms_eps), kept_.middle,
                         weights(norm2), kept_.normed2, kept_.inverse2});
}

void Layer::forward_attention(const WeightLookup& weights) const {
  normalize_input(weights);
  linear(weights, q_, kept_.normed1, kept_.q);
  linear(weights, k_, kept_.normed1, kept_.k);
  linear(weights, v_, kept_.normed1, kept_.v);
  rope(kept_.q, config_.heads, RopeDirection::forward);
  rope(kept_.k, config_.kv_heads, RopeDirection::forward);
  ops_.attention_forward(step_.stream, {attention_, kept_.q, kept_.k, kept_.v, kept_.attended,
                                        kept_.lse, step_.batch.positions});
  linear_residual(weights, o_, kept_.attended, input_, kept_.middle);
}

void Layer::forward_feed_forward(const WeightLookup& weights) const {
  normalize_middle(weights);
  linear(weights, gate_, kept_.normed2, kept_.gate);
  linear(weights, up_, kept_.normed2, kept_.up);
  ops_.swiglu_forward(step_.stream, kept_.gate, kept_.up, kept_.hidden);
  linear_residual(weights, down_, kept_.hidden, kept_.middle, output_);
}

void Layer::backward_feed_forward(const WeightLookup& weights,
                                  const GradientLookup& gradients) const {
  // The gradients of hidden, gate and up overwrite these activations.
  weight_gradient(gradients, down_, gradient_, kept_.hidden);
  input_gradient(weights, down_, gradient_, kept_.hidden, WriteMode::overwrite);
  ops_.swiglu_backward(step_.stream, {kept_.gate, kept_.up, kept_.hidden, kept_.gate, kept_.up});
  weight_gradient(gradients, gate_, kept_.gate, kept_.normed2);
  weight_gradient(gradients, up_, kept_.up, kept_.normed2);
  input_gradient(weights, gate_, kept_.gate, scratch_.dnormed, WriteMode::overwrite);
  input_gradient(weights, up_, kept_.up, scratch_.dnormed, WriteMode::accumulate);
  const Gradient dweight = gradients(norm2);
  ops_.rms_norm_backward(
      step_.stream, {config_.hidden, kept_.middle, weights(norm2), kept_.inverse2, scratch_.dnormed,
                     gradient_, WriteMode::accumulate, dweight.view, dweight.mode});
}

void Layer::backward_attention(const WeightLookup& weights, const GradientLookup& gradients) const {
  weight_gradient(gradients, o_, gradient_, kept_.attended);
  input_gradient(weights, o_, gradient_, scratch_.dattended, WriteMode::overwrite);
  ops_.attention_backward(step_.stream, {attention_, kept_.q, kept_.k, kept_.v, kept_.attended,
                                         kept_.lse, scratch_.dattended, scratch_.dq, scratch_.dk,
                                         scratch_.dv, step_.batch.positions});
  rope(scratch_.dq, config_.heads, RopeDirection::inverse);
  rope(scratch_.dk, config_.kv_heads, RopeDirection::inverse);
  weight_gradient(gradients, q_, scratch_.dq, kept_.normed1);
  weight_gradient(gradients, k_, scratch_.dk, kept_.normed1);
  weight_gradient(gradients, v_, scratch_.dv, kept_.normed1);
  input_gradient(weights, q_, scratch_.dq, scratch_.dnormed, WriteMode::overwrite);
  input_gradient(weights, k_, scratch_.dk, scratch_.dnormed, WriteMode::accumulate);
  input_gradient(weights, v_, scratch_.dv, scratch_.dnormed, WriteMode::accumulate);
  const Gradient dweight = gradients(norm1);
  ops_.rms_norm_backward(step_.stream,
                         {config_.hidden, input_, weights(norm1), kept_.inverse1, scratch_.dnormed,
                          gradient_, WriteMode::accumulate, dweight.view, dweight.mode});
}

void Layer::rope(View x, std::int64_t heads, RopeDirection direction) const {
  ops_.rope(step_.stream, {step_.batch.seq, heads, config_.head_dim, x,
                           step_.activations.rope_table(), direction, step_.batch.positions});
}

void Layer::linear(const WeightLookup& weights, const Linear& which, ConstView x, View y) const {
  ops_.linear_forward(step_.stream, {tokens_, which.in, which.out}, x, weights(which.name), y);
}

void Layer::linear_residual(const WeightLookup& weights, const Linear& which, ConstView x,
                            ConstView residual, View y) const {
  ops_.linear_residual_forward(step_.stream, {tokens_, which.in, which.out}, x, weights(which.name),
                               residual, y);
}

void Layer::weight_gradient(const GradientLookup& gradients, const Linear& which, ConstView dy,
                            ConstView x) const {
  const Gradient dweight = gradients(which.name);
  ops_.linear_wgrad(step_.stream, {tokens_, which.in, which.out}, dy, x, dweight.view,
                    dweight.mode);
}

void Layer::input_gradient(const WeightLookup& weights, const Linear& which, ConstView dy, View dx,
                           WriteMode mode) const {
  ops_.linear_dgrad(step_.stream, {tokens_, which.in, which.out}, dy, weights(which.name), dx,
                    mode);
}

}  // namespace train

#include "model/decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/rope.hpp"

namespace train {

using atoll::ConstView;
using atoll::View;

namespace {

constexpr std::string_view norm1 = "input_layernorm.weight";
constexpr std::string_view norm2 = "post_attention_layernorm.weight";
constexpr std::string_view q_norm = "self_attn.q_norm.weight";
constexpr std::string_view k_norm = "self_attn.k_norm.weight";

// A linear layer y = x W^T + b + u B^T, with u = alpha / rank * x A^T.
struct Linear {
  std::string name;  // name of W
  std::int64_t in, out;
  std::string bias;  // name of b; empty: none
  std::string a, b;  // names of A and B; empty: no adapter
  View u;            // memory for u
};

struct Output {
  const Linear* of;
  View y;
  ConstView residual = {};  // added to y; empty: none
};
struct OutputGradient {
  const Linear* of;
  ConstView dy;
};
constexpr std::size_t most_in_group = 3;

// One decoder layer for one step: attention and feed-forward, forward and backward.
class Layer {
 public:
  Layer(const ModelConfig& config, Ops& ops, const Step& step, std::int64_t index,
        const WeightLookup& weights)
      : config_(config),
        ops_(ops),
        step_(step),
        weights_(weights),
        index_(index),
        rotates_(config.rotates(index)),
        is_last_(index + 1 == config.layers),
        attention_{step_.batch.rows, step_.batch.seq,        config_.heads,        config_.kv_heads,
                   config_.head_dim, config_.sliding_window, step_.batch.documents},
        input_(step_.activations.boundary(index, step_.batch)),
        output_(step_.activations.boundary(index + 1, step_.batch)),
        gradient_(step_.activations.gradient(step_.batch)),
        kept_(step_.activations.layer(index, step_.batch)),
        scratch_(step_.activations.backward(step_.batch)) {}

  // Computes boundary(index + 1) from boundary(index) and fills the layer's activations.
  void forward() const {
    forward_attention();
    forward_feed_forward();
    linears(kept_.hidden, {{&down_, output_, kept_.middle}});
  }

  // Replaces the step's gradient at boundary(index + 1) with that at boundary(index).
  void backward(const GradientLookup& gradients) const {
    const Recompute recompute = step_.activations.plan().recompute;
    // The last layer is not run again: the shared memory still has its activations.
    if (recompute == Recompute::full && !is_last_) run_again();
    if (recompute == Recompute::selective) {
      normalize_middle();
      swiglu();
    }
    backward_feed_forward(gradients);
    if (recompute == Recompute::selective) {
      normalize_input();
      if (config_.qk_norm) prepare_heads();
    }
    backward_attention(gradients);
  }

 private:
  // Computes the activations that backward reads: all but the layer's output.
  void run_again() const {
    forward_attention();
    forward_feed_forward();
    if (!down_.a.empty()) project_down(down_, kept_.hidden);
  }
  void normalize_input() const {
    normalize(config_.hidden, input_, norm1, kept_.normed1, kept_.inverse1);
  }
  void normalize_middle() const {
    normalize(config_.hidden, kept_.middle, norm2, kept_.normed2, kept_.inverse2);
  }
  void swiglu() const { ops_.run(step_.stream, SwigluForward{kept_.gate, kept_.up, kept_.hidden}); }

  // Normalizes and rotates the heads of queries and keys, each only if the layer has it.
  void prepare_heads() const {
    if (config_.qk_norm) {
      normalize(config_.head_dim, kept_.plain_q, q_norm, kept_.q, kept_.q_inverse);
      normalize(config_.head_dim, kept_.plain_k, k_norm, kept_.k, kept_.k_inverse);
    }
    rope(kept_.q, config_.heads, RopeDirection::forward);
    rope(kept_.k, config_.kv_heads, RopeDirection::forward);
  }

  void forward_attention() const {
    normalize_input();
    linears(kept_.normed1, {{&q_, config_.qk_norm ? kept_.plain_q : kept_.q},
                            {&k_, config_.qk_norm ? kept_.plain_k : kept_.k},
                            {&v_, kept_.v}});
    prepare_heads();
    ops_.run(step_.stream, AttentionForward{attention_, kept_.q, kept_.k, kept_.v, kept_.attended,
                                            kept_.lse, step_.batch.positions});
    linears(kept_.attended, {{&o_, kept_.middle, input_}});
  }

  void forward_feed_forward() const {
    normalize_middle();
    linears(kept_.normed2, {{&gate_, kept_.gate}, {&up_, kept_.up}});
    swiglu();
  }

  void backward_feed_forward(const GradientLookup& gradients) const {
    // The gradients of hidden, gate and up overwrite these activations.
    linears_backward(gradients, kept_.hidden, {{&down_, gradient_}}, kept_.hidden);
    ops_.run(step_.stream,
             SwigluBackward{kept_.gate, kept_.up, kept_.hidden, kept_.gate, kept_.up});
    linears_backward(gradients, kept_.normed2, {{&gate_, kept_.gate}, {&up_, kept_.up}},
                     scratch_.dnormed);
    normalize_backward(gradients(norm2), kept_.middle, norm2, kept_.inverse2);
  }

  void backward_attention(const GradientLookup& gradients) const {
    linears_backward(gradients, kept_.attended, {{&o_, gradient_}}, scratch_.dattended);
    ops_.run(step_.stream, AttentionBackward{attention_, kept_.q, kept_.k, kept_.v, kept_.attended,
                                             kept_.lse, scratch_.dattended, scratch_.dq,
                                             scratch_.dk, scratch_.dv, step_.batch.positions});
    rope(scratch_.dq, config_.heads, RopeDirection::inverse);
    rope(scratch_.dk, config_.kv_heads, RopeDirection::inverse);
    View dq = scratch_.dq, dk = scratch_.dk;
    if (config_.qk_norm) {  // the gradients of the inputs of the norms overwrite q and k
      heads_backward(gradients(q_norm), kept_.plain_q, q_norm, kept_.q_inverse, dq, kept_.q);
      heads_backward(gradients(k_norm), kept_.plain_k, k_norm, kept_.k_inverse, dk, kept_.k);
      dq = kept_.q;
      dk = kept_.k;
    }
    linears_backward(gradients, kept_.normed1, {{&q_, dq}, {&k_, dk}, {&v_, scratch_.dv}},
                     scratch_.dnormed);
    normalize_backward(gradients(norm1), input_, norm1, kept_.inverse1);
  }

  void normalize(std::int64_t width, ConstView x, std::string_view name, View y,
                 View inverse) const {
    ops_.run(step_.stream, RmsNormForward{width, static_cast<float>(config_.rms_eps), x,
                                          weights_(name), y, inverse});
  }
  void normalize_backward(const Gradient& dweight, ConstView x, std::string_view name,
                          ConstView inverse) const {
    ops_.run(step_.stream,
             RmsNormBackward{config_.hidden, x, weights_(name), inverse, scratch_.dnormed,
                             gradient_, WriteMode::accumulate, dweight.view, dweight.mode});
  }
  void heads_backward(const Gradient& dweight, ConstView x, std::string_view name,
                      ConstView inverse, ConstView dy, View dx) const {
    ops_.run(step_.stream, RmsNormBackward{config_.head_dim, x, weights_(name), inverse, dy, dx,
                                           WriteMode::overwrite, dweight.view, dweight.mode});
  }
  void rope(View x, std::int64_t heads, RopeDirection direction) const {
    if (!rotates_) return;
    ops_.run(step_.stream, Rope{step_.batch.seq, heads, config_.head_dim, x,
                                step_.activations.rope_table(), direction, step_.batch.positions});
  }
  // Computes the outputs of linear layers with the same input.
  void linears(ConstView x, std::initializer_list<Output> outputs) const {
    LinearsForward::Layer layers[most_in_group];
    std::size_t count = 0;
    for (const Output& output : outputs) {
      layers[count++] = {output.of->out, weights_(output.of->name), output.y, output.residual};
    }
    ops_.linears_forward(step_.stream, {step_.batch.size(), outputs.begin()->of->in, x,
                                        std::span(layers).first(count)});
    for (const Output& output : outputs) {
      const Linear& linear = *output.of;
      if (!linear.bias.empty()) {
        ops_.run(step_.stream, AddBias{weights_(linear.bias), output.y});
      }
      if (linear.a.empty()) continue;
      project_down(linear, x);
      ops_.linear_forward(step_.stream, up_shape(linear), linear.u, weights_(linear.b), output.y,
                          WriteMode::accumulate);
    }
  }

  // Computes the gradients of the parameters of linear layers with the same input x, and the
  // gradient dx of that input, which may overwrite x.
  void linears_backward(const GradientLookup& gradients, ConstView x,
                        std::initializer_list<OutputGradient> outputs, View dx) const {
    LinearsBackward::Layer layers[most_in_group];
    std::size_t count = 0;
    for (const OutputGradient& output : outputs) {
      const Linear& linear = *output.of;
      const Gradient dweight = gradients(linear.name);
      layers[count++] = {linear.out, output.dy, weights_(linear.name), dweight.view, dweight.mode};
      adapter_gradients(gradients, linear, output.dy, x);
      if (linear.bias.empty()) continue;
      const Gradient dbias = gradients(linear.bias);
      ops_.run(step_.stream, BiasBackward{linear.out, output.dy, dbias.view, dbias.mode});
    }
    ops_.linears_backward(step_.stream, {step_.batch.size(), outputs.begin()->of->in, x, dx,
                                         std::span(layers).first(count)});
    for (const OutputGradient& output : outputs) {
      const Linear& linear = *output.of;
      if (linear.a.empty()) continue;
      ops_.linear_dgrad(step_.stream, down_shape(linear), linear.u, weights_(linear.a), dx,
                        WriteMode::accumulate);
    }
  }

  LinearShape down_shape(const Linear& which) const {
    return {step_.batch.size(), which.in, config_.adapters.rank};
  }
  LinearShape up_shape(const Linear& which) const {
    return {step_.batch.size(), config_.adapters.rank, which.out};
  }
  float adapter_scale() const {
    return static_cast<float>(config_.adapters.alpha / static_cast<double>(config_.adapters.rank));
  }
  void project_down(const Linear& which, ConstView x) const {
    ops_.linear_forward(step_.stream, down_shape(which), x, weights_(which.a), which.u);
    ops_.run(step_.stream, Scale{which.u, adapter_scale()});
  }
  // Replaces u by the gradient of x A^T.
  void adapter_gradients(const GradientLookup& gradients, const Linear& which, ConstView dy,
                         ConstView x) const {
    if (which.a.empty()) return;
    const Gradient db = gradients(which.b);
    ops_.linear_wgrad(step_.stream, up_shape(which), dy, which.u, db.view, db.mode);
    ops_.linear_dgrad(step_.stream, up_shape(which), dy, weights_(which.b), which.u,
                      WriteMode::overwrite);
    ops_.run(step_.stream, Scale{which.u, adapter_scale()});
    const Gradient da = gradients(which.a);
    ops_.linear_wgrad(step_.stream, down_shape(which), which.u, x, da.view, da.mode);
  }
  Linear make(std::size_t i) const {
    const Projection& projection = projections_[i];
    const std::string stem = fmt::format("{}.{}", projection.place, projection.name);
    const bool has_adapter = config_.adapters.on(index_, projection.name);
    return {stem + ".weight",
            projection.in,
            projection.out,
            projection.has_bias ? stem + ".bias" : "",
            has_adapter ? stem + ".lora_A.weight" : "",
            has_adapter ? stem + ".lora_B.weight" : "",
            kept_.adapted[i]};
  }

  const ModelConfig& config_;
  Ops& ops_;
  const Step& step_;
  const WeightLookup& weights_;
  std::int64_t index_;
  bool rotates_, is_last_;
  AttentionShape attention_;
  View input_, output_, gradient_;
  LayerActivations kept_;
  BackwardScratch scratch_;
  std::array<Projection, 7> projections_ = projections(config_);
  Linear q_ = make(0), k_ = make(1), v_ = make(2), o_ = make(3);
  Linear gate_ = make(4), up_ = make(5), down_ = make(6);
};

}  // namespace

Decoder::Decoder(ModelConfig config, Ops& ops) : config_(std::move(config)), ops_(ops) {
  validate(config_);
}

Activations Decoder::make_activations(const ActivationPlan& plan, const atoll::Device& device,
                                      atoll::Stream& stream) const {
  Activations activations(config_, plan, device);
  const std::vector<float> table = rope_table(config_, plan.max_seq);
  stream.copy(activations.rope_table().data, table.data(), activations.rope_table().bytes());
  stream.synchronize();
  return activations;
}

void Decoder::begin(const Step& step) const {
  const View total = step.activations.total();
  step.stream.zero(total.data, total.bytes());
}

void Decoder::forward(const Step& step, std::size_t unit, const WeightLookup& weights) const {
  step.activations.require_fits(step.batch);
  if (unit == 0) {
    ops_.run(step.stream,
             EmbeddingForward{step.batch.tokens, weights("embed_tokens.weight"),
                              step.activations.boundary(0, step.batch), config_.hidden});
    return;
  }
  if (unit + 1 < units()) {
    return Layer(config_, ops_, step, static_cast<std::int64_t>(unit) - 1, weights).forward();
  }
  const HeadActivations head = step.activations.head(step.batch);
  ops_.run(step.stream, RmsNormForward{config_.hidden, static_cast<float>(config_.rms_eps),
                                       step.activations.boundary(config_.layers, step.batch),
                                       weights("norm.weight"), head.normed, head.inverse});
}

void Decoder::backward(const Step& step, std::size_t unit, const WeightLookup& weights,
                       const GradientLookup& gradients) const {
  step.activations.require_fits(step.batch);
  if (unit == 0) {
    const Gradient dtable = gradients("embed_tokens.weight");
    return ops_.run(step.stream, EmbeddingBackward{config_.vocab, config_.hidden, step.batch.tokens,
                                                   step.activations.gradient(step.batch),
                                                   dtable.view, dtable.mode});
  }
  if (unit + 1 == units()) return backward_head(step, weights, gradients);
  Layer(config_, ops_, step, static_cast<std::int64_t>(unit) - 1, weights).backward(gradients);
}

void Decoder::loss(const Step& step, const WeightLookup& weights) const {
  head_chunks(step, weights, nullptr);
}

void Decoder::head_chunks(const Step& step, const WeightLookup& weights,
                          const GradientLookup* gradients) const {
  const HeadActivations head = step.activations.head(step.batch);
  const std::string_view name = config_.tied ? "embed_tokens.weight" : "lm_head.weight";
  const ConstView weight = weights(name);
  const bool training = gradients != nullptr;
  Gradient dweight = training ? (*gradients)(name) : Gradient{};
  const std::int64_t chunk = std::min(step.activations.plan().head_rows, step.batch.size());
  const auto part = [](View view, std::int64_t row, std::int64_t rows, std::int64_t width) {
    return view.part(static_cast<std::uint64_t>(row * width),
                     static_cast<std::uint64_t>(rows * width));
  };
  for (std::int64_t row = 0; row < step.batch.size(); row += chunk) {
    const std::int64_t rows = std::min(chunk, step.batch.size() - row);
    const LinearShape shape{rows, config_.hidden, config_.vocab};
    const View x = part(head.normed, row, rows, config_.hidden);
    const View logits = part(head.logits, 0, rows, config_.vocab);
    const ConstView labels =
        step.batch.labels.part(static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(rows));
    ops_.linear_forward(step.stream, shape, x, weight, logits);
    ops_.run(step.stream, CrossEntropy{config_.vocab, labels, logits, training ? logits : View{},
                                       step.loss_scale, step.activations.total()});
    if (!training) continue;
    ops_.linear_dgrad(step.stream, shape, logits, weight,
                      part(head.dnormed, row, rows, config_.hidden), WriteMode::overwrite);
    ops_.linear_wgrad(step.stream, shape, logits, x, dweight.view, dweight.mode);
    if (dweight.mode == WriteMode::overwrite) dweight.mode = WriteMode::accumulate;
  }
  ops_.check_ids(step.stream);
}

void Decoder::backward_head(const Step& step, const WeightLookup& weights,
                            const GradientLookup& gradients) const {
  head_chunks(step, weights, &gradients);
  const HeadActivations head = step.activations.head(step.batch);
  const Gradient dweight = gradients("norm.weight");
  ops_.run(step.stream,
           RmsNormBackward{config_.hidden, step.activations.boundary(config_.layers, step.batch),
                           weights("norm.weight"), head.inverse, head.dnormed,
                           step.activations.gradient(step.batch), WriteMode::overwrite,
                           dweight.view, dweight.mode});
}

}  // namespace train

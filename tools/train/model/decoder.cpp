#include "model/decoder.hpp"

#include <algorithm>
#include <utility>

#include "model/layer.hpp"

namespace train {

using atoll::ConstView;
using atoll::View;

Decoder::Decoder(ModelConfig config, Ops& ops) : config_(std::move(config)), ops_(ops) {
  validate(config_);
}

Activations Decoder::make_activations(const ActivationPlan& plan, const atoll::Device& device,
                                      atoll::Stream& stream) const {
  Activations activations(config_, plan, device);
  ops_.rope_table(stream, activations.rope_table(), config_.head_dim, config_.rope_theta);
  return activations;
}

void Decoder::begin(const Step& step) const {
  const View total = step.activations.total();
  step.stream.zero(total.data, total.bytes());
}

void Decoder::forward(const Step& step, std::size_t unit, const WeightLookup& weights) const {
  step.activations.require_fits(step.batch);
  if (unit == 0) {
    ops_.embedding_forward(step.stream, step.batch.tokens, weights("embed_tokens.weight"),
                           step.activations.boundary(0, step.batch), config_.hidden);
    return;
  }
  if (unit + 1 < units()) {
    return forward_layer({config_, ops_, step, static_cast<std::int64_t>(unit) - 1, weights});
  }
  const HeadActivations head = step.activations.head(step.batch);
  ops_.rms_norm_forward(step.stream, {config_.hidden, static_cast<float>(config_.rms_eps),
                                      step.activations.boundary(config_.layers, step.batch),
                                      weights("norm.weight"), head.normed, head.inverse});
}

void Decoder::backward(const Step& step, std::size_t unit, const WeightLookup& weights,
                       const GradientLookup& gradients) const {
  step.activations.require_fits(step.batch);
  if (unit == 0) {
    const Gradient dtable = gradients("embed_tokens.weight");
    return ops_.embedding_backward(
        step.stream, {config_.vocab, config_.hidden, step.batch.tokens,
                      step.activations.gradient(step.batch), dtable.view, dtable.mode});
  }
  if (unit + 1 == units()) return backward_head(step, weights, gradients);
  backward_layer({config_, ops_, step, static_cast<std::int64_t>(unit) - 1, weights}, gradients);
}

std::string_view Decoder::head_weight() const noexcept {
  return config_.tied ? "embed_tokens.weight" : "lm_head.weight";
}

void Decoder::loss(const Step& step, const WeightLookup& weights) const {
  head_chunks(step, weights, nullptr);
}

void Decoder::logits(const Step& step, const WeightLookup& weights, View out) const {
  const HeadActivations head = step.activations.head(step.batch);
  ops_.linear_forward(step.stream, {step.batch.size(), config_.hidden, config_.vocab}, head.normed,
                      weights(head_weight()), out);
  ops_.check_ids(step.stream);
}

void Decoder::head_chunks(const Step& step, const WeightLookup& weights,
                          const GradientLookup* gradients) const {
  const HeadActivations head = step.activations.head(step.batch);
  const ConstView weight = weights(head_weight());
  const bool training = gradients != nullptr;
  Gradient dweight = training ? (*gradients)(head_weight()) : Gradient{};
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
    ops_.cross_entropy(step.stream, {config_.vocab, labels, logits, training ? logits : View{},
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
  ops_.rms_norm_backward(
      step.stream,
      {config_.hidden, step.activations.boundary(config_.layers, step.batch),
       weights("norm.weight"), head.inverse, head.dnormed, step.activations.gradient(step.batch),
       WriteMode::overwrite, dweight.view, dweight.mode});
}

}  // namespace train

// Mistral's forward and backward pass, unit by unit, written out by hand. Knows neither FSDP nor
// the kind of device: weights and gradients come through two look-ups, arithmetic goes to Ops.
//
//   decoder.begin(step);
//   for (unit = 0; unit < units; ++unit) decoder.forward(step, unit, weights);     // gather, run
//   for (unit = units; unit-- > 0;)      decoder.backward(step, unit, weights, gradients);
//   stream.synchronize();  // activations.total() holds the sum of losses and the valid labels
//
// Everything is enqueued on the step's stream. Weights have the compute dtype of the activations.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "model/activations.hpp"
#include "model/ops.hpp"
#include "model/params.hpp"

namespace train {

// Called with the names of param_specs(config, unit); with tied embeddings the head also asks for
// "embed_tokens.weight".
using WeightLookup = std::function<atoll::ConstView(std::string_view name)>;

struct Gradient {
  atoll::View view;  // f32, the shape of the weight
  WriteMode mode = WriteMode::none;
};
using GradientLookup = std::function<Gradient(std::string_view name)>;

struct Step {
  atoll::Stream& stream;
  const Batch& batch;
  Activations& activations;
  // Factor of every gradient: 1 / the number of valid labels of all ranks and micro batches.
  float loss_scale = 1.0F;
};

class Decoder {
 public:
  // `ops` must outlive the decoder.
  Decoder(ModelConfig config, Ops& ops);

  const ModelConfig& config() const noexcept { return config_; }
  std::size_t units() const noexcept { return unit_count(config_); }

  Activations make_activations(const ActivationPlan& plan, const atoll::Device& device,
                               atoll::Stream& stream) const;

  // Sets the loss total to zero: once before the micro batches whose sum is wanted.
  void begin(const Step& step) const;

  // One unit. The head's forward is the final norm alone, since its logits exist only in pieces: in
  // training backward(head) computes them together with their gradient; evaluation calls loss().
  void forward(const Step& step, std::size_t unit, const WeightLookup& weights) const;

  // Evaluation, after forward(head), with the head's weights: adds to the loss total.
  void loss(const Step& step, const WeightLookup& weights) const;

  // Likewise, all logits: f32 [rows * seq, vocab]. For tests and sampling.
  void logits(const Step& step, const WeightLookup& weights, atoll::View out) const;

  // One unit, in reverse order; gradients whose mode is `none` are not computed. backward(head)
  // adds to the loss total. Consumes the unit's activations: once per forward.
  void backward(const Step& step, std::size_t unit, const WeightLookup& weights,
                const GradientLookup& gradients) const;

 private:
  enum class HeadWork {
    loss,
    loss_and_gradients
  };
  void head_chunks(const Step& step, HeadWork work, const WeightLookup& weights,
                   const GradientLookup& gradients) const;
  void backward_head(const Step& step, const WeightLookup& weights,
                     const GradientLookup& gradients) const;
  void backward_embed(const Step& step, const GradientLookup& gradients) const;
  std::string_view head_weight() const noexcept;

  ModelConfig config_;
  Ops& ops_;
};

}  // namespace train

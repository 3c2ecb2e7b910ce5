// The forward and backward pass of the families in config.hpp, unit by unit, written by hand. It is
// independent of FSDP and of the device: callers supply weights and gradients by name, and Ops does
// the arithmetic. All work is enqueued on the step's stream. Weights have the compute dtype of the
// activations. README.md shows a whole pass.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "model/activations.hpp"
#include "model/ops.hpp"
#include "model/params.hpp"

namespace train {

// Called with the names of param_specs(config, unit). With tied embeddings, the head also requests
// "embed_tokens.weight".
using WeightLookup = std::function<atoll::ConstView(std::string_view name)>;

struct Gradient {
  atoll::View view;  // f32 memory for the gradient, in the shape of the weight
  WriteMode mode = WriteMode::none;
};
using GradientLookup = std::function<Gradient(std::string_view name)>;

struct Step {
  atoll::Stream& stream;
  const Batch& batch;
  Activations& activations;
  // Scales every gradient: 1 / the number of valid labels of all ranks and micro batches.
  float loss_scale = 1.0F;
};

class Decoder {
 public:
  // `ops` must outlive the decoder.
  Decoder(ModelConfig config, Ops& ops);

  const ModelConfig& config() const noexcept { return config_; }
  std::size_t units() const noexcept { return unit_count(config_); }

  // Also fills the rotary table; blocks until that is done.
  Activations make_activations(const ActivationPlan& plan, const atoll::Device& device,
                               atoll::Stream& stream) const;

  // Sets the loss total to zero. Call it once before the micro batches of a step.
  void begin(const Step& step) const;

  // Runs one unit forward. For the head this is only the final norm, because logits exist only in
  // blocks: backward(head) computes them with their gradient, and loss() without.
  void forward(const Step& step, std::size_t unit, const WeightLookup& weights) const;

  // For evaluation, after forward(head), with the head's weights: adds to the loss total.
  void loss(const Step& step, const WeightLookup& weights) const;

  // Runs one unit backward, in reverse order, after the forward of all units for the same batch.
  // Gradients with mode `none` are not computed. backward(head) adds to the loss total. Consumes
  // the unit's activations, so call it once.
  void backward(const Step& step, std::size_t unit, const WeightLookup& weights,
                const GradientLookup& gradients) const;

 private:
  // Computes the head in blocks of tokens and adds to the loss total. Computes gradients unless
  // `gradients` is null.
  void head_chunks(const Step& step, const WeightLookup& weights,
                   const GradientLookup* gradients) const;
  void backward_head(const Step& step, const WeightLookup& weights,
                     const GradientLookup& gradients) const;

  ModelConfig config_;
  Ops& ops_;
};

}  // namespace train

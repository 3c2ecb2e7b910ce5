// One decoder layer for one step: attention and feed-forward, forward and backward.
#pragma once

#include <cstdint>

#include "model/decoder.hpp"

namespace train {

struct LayerOfStep {
  const ModelConfig& config;
  Ops& ops;
  const Step& step;
  std::int64_t index;
  const WeightLookup& weights;
};

// Computes boundary(index + 1) from boundary(index) and fills the layer's activations. Running it
// again gives the same bits.
void forward_layer(const LayerOfStep& layer);

// Replaces the step's gradient at boundary(index + 1) with that at boundary(index).
void backward_layer(const LayerOfStep& layer, const GradientLookup& gradients);

}  // namespace train

// One decoder layer for one step: attention and feed-forward, forward and backward.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/decoder.hpp"

namespace train {

class Layer {
 public:
  Layer(const ModelConfig& config, Ops& ops, const Step& step, std::int64_t index);

  // Computes boundary(index + 1) from boundary(index) and fills the layer's activations. Running it
  // again gives the same bits.
  void forward(const WeightLookup& weights) const;

  // Replaces the step's gradient at boundary(index + 1) with that at boundary(index).
  void backward(const WeightLookup& weights, const GradientLookup& gradients) const;

 private:
  void normalize_input(const WeightLookup& weights) const;
  void normalize_middle(const WeightLookup& weights) const;
  void forward_attention(const WeightLookup& weights) const;
  void forward_feed_forward(const WeightLookup& weights) const;
  void backward_feed_forward(const WeightLookup& weights, const GradientLookup& gradients) const;
  void backward_attention(const WeightLookup& weights, const GradientLookup& gradients) const;
  void rope(atoll::View x, std::int64_t heads, RopeDirection direction) const;

  // The weight of a linear layer y = x W^T.
  struct Linear {
    std::string_view name;
    std::int64_t in, out;
  };
  void linear(const WeightLookup& weights, const Linear& which, atoll::ConstView x,
              atoll::View y) const;
  void linear_residual(const WeightLookup& weights, const Linear& which, atoll::ConstView x,
                       atoll::ConstView residual, atoll::View y) const;
  void weight_gradient(const GradientLookup& gradients, const Linear& which, atoll::ConstView dy,
                       atoll::ConstView x) const;
  void input_gradient(const WeightLookup& weights, const Linear& which, atoll::ConstView dy,
                      atoll::View dx, WriteMode mode) const;

  const ModelConfig& config_;
  Ops& ops_;
  const Step& step_;
  std::int64_t tokens_;
  AttentionShape attention_;
  atoll::View input_, output_, gradient_;
  LayerActivations kept_;
  BackwardScratch scratch_;
  Linear q_, k_, v_, o_, gate_, up_, down_;
};

}  // namespace train

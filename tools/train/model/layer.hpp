// One layer of the decoder for one step: attention and feed-forward halves, forward and backward.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/decoder.hpp"

namespace train {

class Layer {
 public:
  Layer(const ModelConfig& config, Ops& ops, const Step& step, std::int64_t index);

  // boundary(index) -> boundary(index + 1), filling the layer's activations. Can be run again from
  // the same input, with the same bits.
  void forward(const WeightLookup& weights) const;

  // The step's gradient turns from that of boundary(index + 1) into that of boundary(index).
  void backward(const WeightLookup& weights, const GradientLookup& gradients) const;

 private:
  void normalize_input(const WeightLookup& weights) const;
  void normalize_middle(const WeightLookup& weights) const;
  void forward_attention(const WeightLookup& weights) const;
  void forward_feed_forward(const WeightLookup& weights) const;
  void backward_feed_forward(const WeightLookup& weights, const GradientLookup& gradients) const;
  void backward_attention(const WeightLookup& weights, const GradientLookup& gradients) const;
  void rope(atoll::View x, std::int64_t heads, RopeDirection direction) const;

  // x W^T, then both gradients of it, for the weight of this name.
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

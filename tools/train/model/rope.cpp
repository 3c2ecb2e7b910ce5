#include "model/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace train {
namespace {

constexpr double turn = 2 * std::numbers::pi;

double llama3_frequency(double frequency, const RopeScaling& rope) {
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double turns = original * frequency / turn;  // turns within the original positions
  if (turns > rope.high_freq_factor) return frequency;
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  const double share =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - share) * frequency / rope.factor + share * frequency;
}

// The index of the pair that turns `turns` times within the original positions; not an integer.
double pair_with_turns(double turns, const ModelConfig& config) {
  const auto original = static_cast<double>(config.rope_scaling.original_max_position_embeddings);
  return static_cast<double>(config.head_dim) * std::log(original / (turns * turn)) /
         (2 * std::log(config.rope_theta));
}

void scale_by_yarn(std::vector<double>& frequencies, const ModelConfig& config) {
  const RopeScaling& rope = config.rope_scaling;
  double low = pair_with_turns(rope.beta_fast, config);
  double high = pair_with_turns(rope.beta_slow, config);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.head_dim - 1));
  if (low == high) high += 0.001;  // avoids a division by 0, as Hugging Face does
  for (std::size_t k = 0; k < frequencies.size(); ++k) {
    const double ramp = std::clamp((static_cast<double>(k) - low) / (high - low), 0.0, 1.0);
    frequencies[k] *= ramp / rope.factor + (1 - ramp);
  }
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& config) {
  const RopeScaling& rope = config.rope_scaling;
  std::vector<double> frequencies;
  for (std::int64_t k = 0; k < config.head_dim / 2; ++k) {
    const double exponent = -2.0 * static_cast<double>(k) / static_cast<double>(config.head_dim);
    double frequency = std::pow(config.rope_theta, exponent);
    if (rope.kind == RopeScaling::Kind::linear) frequency /= rope.factor;
    if (rope.kind == RopeScaling::Kind::llama3) frequency = llama3_frequency(frequency, rope);
    frequencies.push_back(frequency);
  }
  if (rope.kind == RopeScaling::Kind::yarn) scale_by_yarn(frequencies, config);
  return frequencies;
}

std::vector<float> rope_table(const ModelConfig& config, std::int64_t positions) {
  const std::vector<double> frequencies = rope_frequencies(config);
  const double scale = config.rope_scaling.kind == RopeScaling::Kind::yarn
                           ? config.rope_scaling.attention_factor
                           : 1.0;
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(positions * config.head_dim));
  for (std::int64_t position = 0; position < positions; ++position) {
    const auto at = static_cast<double>(position);
    for (const double f : frequencies)
      table.push_back(static_cast<float>(scale * std::cos(at * f)));
    for (const double f : frequencies)
      table.push_back(static_cast<float>(scale * std::sin(at * f)));
  }
  return table;
}

}  // namespace train

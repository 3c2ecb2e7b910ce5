// The table of the rotary embedding, with the scalings that long-context models use. The formulas
// are those of Hugging Face's modeling_rope_utils, in f64.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.hpp"

namespace train {

// Angle per position of each pair (k, k + head_dim / 2) of a head: head_dim / 2 values.
//   none, dynamic  theta^(-2k / head_dim)
//   linear         the same / factor
//   llama3         the same for wavelengths below original / high_freq_factor, / factor above
//                  original / low_freq_factor, and a mean of both between
//   yarn           a mean of the first two, by a ramp over k between the pairs that turn beta_fast
//                  and beta_slow times within the original positions
// `dynamic` raises theta only beyond max_position_embeddings, which is the longest row of training.
std::vector<double> rope_frequencies(const ModelConfig& config);

// [positions, head_dim]: each row has head_dim / 2 cosines, then as many sines, of position *
// frequency, multiplied by attention_factor.
std::vector<float> rope_table(const ModelConfig& config, std::int64_t positions);

}  // namespace train

// The learning rate of each step.
#pragma once

#include <cstdint>

#include "loop/options.hpp"

namespace train {

// The learning rate at step `step`, counted from 0, as Hugging Face's schedulers define it. It rises
// linearly from 0, which is the rate of the first step, and reaches --lr at step --lr-warmup. Then
// it stays (constant), or falls to --lr-min-ratio x --lr at --steps: along a line (linear), along
// half a cosine (cosine), or along a line in the last --lr-decay-steps steps only (wsd: warm-up,
// stable, decay).
double learning_rate(const RunOptions& options, std::int64_t step);

}  // namespace train

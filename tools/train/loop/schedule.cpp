#include "loop/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace train {
namespace {

// Steps of the decay of wsd.
std::int64_t decay_steps(const RunOptions& options) {
  if (options.lr_decay_steps > 0) return options.lr_decay_steps;
  return std::max<std::int64_t>(options.steps / 10, 1);
}

// The part of the decay that is done at this step, from 0 to 1.
double decayed(const RunOptions& options, std::int64_t first, std::int64_t step) {
  const auto span = static_cast<double>(std::max<std::int64_t>(options.steps - first, 1));
  return std::clamp(static_cast<double>(step - first) / span, 0.0, 1.0);
}

}  // namespace

double learning_rate(const RunOptions& options, std::int64_t step) {
  if (step < options.lr_warmup) {
    // As in Hugging Face's schedulers, warmup starts at 0, but with wsd at --lr-min-ratio x --lr.
    const double least = options.lr_schedule == "wsd" ? options.lr_min_ratio : 0;
    const double risen = static_cast<double>(step) / static_cast<double>(options.lr_warmup);
    return options.lr * (least + (1 - least) * risen);
  }
  double kept = 1;  // share of the rate above its minimum: 1 before the decay, 0 at its end
  if (options.lr_schedule == "linear") {
    kept = 1 - decayed(options, options.lr_warmup, step);
  } else if (options.lr_schedule == "cosine") {
    kept = 0.5 * (1 + std::cos(std::numbers::pi * decayed(options, options.lr_warmup, step)));
  } else if (options.lr_schedule == "wsd") {
    const std::int64_t first = std::max(options.steps - decay_steps(options), options.lr_warmup);
    kept = 1 - decayed(options, first, step);
  }
  return options.lr * (options.lr_min_ratio + (1 - options.lr_min_ratio) * kept);
}

}  // namespace train

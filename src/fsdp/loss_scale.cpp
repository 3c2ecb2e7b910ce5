#include "atoll/loss_scale.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/errors.hpp"

namespace atoll_v1::atoll::fsdp {

LossScale::LossScale(LossScaleOptions options) : options_(options), scale_(options.initial) {
  require(std::isfinite(options.initial) && options.initial > 0,
          "LossScale: initial = {} must be finite and above 0", options.initial);
  require(options.growth >= 1, "LossScale: growth = {} is not 1 or above", options.growth);
  require(options.backoff > 0 && options.backoff <= 1, "LossScale: backoff = {} is not in (0, 1]",
          options.backoff);
  require(options.interval >= 1, "LossScale: interval = {} is not 1 or above", options.interval);
}

void LossScale::update(StepResult result) noexcept {
  switch (result) {
    case StepResult::skipped:
      scale_ = std::max(scale_ * options_.backoff, std::numeric_limits<float>::min());
      steps_ = 0;
      return;
    case StepResult::updated:
      if (++steps_ < options_.interval) return;
      if (std::isfinite(scale_ * options_.growth)) scale_ *= options_.growth;
      steps_ = 0;
  }
}

std::string LossScale::to_string() const { return fmt::format("{} {}", scale_, steps_); }

void LossScale::restore(std::string_view text) {
  float scale = 0;
  int steps = -1;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, scale);
  const bool space = first.ec == std::errc() && first.ptr != end && *first.ptr == ' ';
  const auto last = std::from_chars(space ? first.ptr + 1 : end, end, steps);
  require(
      last.ec == std::errc() && last.ptr == end && std::isfinite(scale) && scale > 0 && steps >= 0,
      ErrorCode::bad_data, "LossScale: \"{}\" is not the state of a loss scale", text);
  scale_ = scale;
  steps_ = steps;
}

}  // namespace atoll_v1::atoll::fsdp

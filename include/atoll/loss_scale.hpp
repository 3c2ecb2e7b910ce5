// Dynamic loss scaling for training in f16, in which small gradients would be rounded to zero. The
// program multiplies the loss by scale(), and the optimizer divides the gradients by it:
//
//   fsdp::LossScale scaling;
//   ...  // each step: forward, and backward of the loss times scaling.scale()
//   optimizer.step(learning_rate, compute, {.gradient_scale = 1 / scaling.scale()});
//   scaling.update(optimizer.last_step());
//
// A gradient that overflows to infinity makes the optimizer skip the step
// (OptimizerOptions::skip_nonfinite), and the scale falls. After many steps without an overflow it
// rises. All ranks compute the same scale, because all ranks skip the same steps. The defaults are
// those of torch.amp.GradScaler.
#pragma once

#include <string>
#include <string_view>

#include "atoll/optimizer.hpp"

namespace atoll_v1::atoll::fsdp {

struct LossScaleOptions {
  float initial = 65536;  // scale of the first step
  float growth = 2;       // multiplies the scale after `interval` steps without an overflow
  float backoff = 0.5f;   // multiplies the scale after an overflow
  int interval = 2000;    // number of steps in a row
};

class ATOLL_API LossScale {
 public:
  // Throws Error(invalid_argument) unless initial > 0, growth >= 1, 0 < backoff <= 1 and
  // interval >= 1.
  explicit LossScale(LossScaleOptions options = {});
  float scale() const noexcept { return scale_; }
  // Call it once after each step. The scale stays finite and at least 2^-126.
  void update(StepResult result) noexcept;
  // Returns the state as text, for the `extra` of save() in checkpoint.hpp.
  std::string to_string() const;
  // Restores a state from the text of to_string(). Throws Error(bad_data), which quotes the text,
  // for any other text.
  void restore(std::string_view text);

 private:
  LossScaleOptions options_;
  float scale_;
  int steps_ = 0;  // number of steps in a row without an overflow
};

}  // namespace atoll_v1::atoll::fsdp

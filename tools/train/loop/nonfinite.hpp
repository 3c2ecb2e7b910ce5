// Steps whose loss, gradients or weights are infinite or NaN.
#pragma once

#include <cstdint>
#include <string>

#include "atoll/fsdp.hpp"
#include "atoll/world.hpp"
#include "report/metrics.hpp"

namespace train {

class RunOptimizer;

struct NonFiniteTensors {
  std::int64_t tensors = 0;  // tensors with an infinite or NaN element
  std::int64_t of = 0;       // tensors that were searched
  std::string first{};       // Hugging Face name of the model's first tensor with such an element
};

struct NonFinite {
  NonFiniteTensors gradients;  // counts for the gradients of trainable tensors
  NonFiniteTensors weights;    // counts for the weights of all tensors but quantized ones
};

// Searches the gradients of the last step and the weights after it, on all ranks. Collective.
// Blocks. Reads every element, so call it only for a step whose norm is not finite.
NonFinite find_nonfinite(atoll::World& world, const atoll::fsdp::Engine& engine,
                         RunOptimizer& optimizer, atoll::Stream& compute);

// Counts the steps in a row that were not finite, alike on every rank.
class NonFiniteRow {
 public:
  // `most` is --max-skipped; 0 means no limit.
  explicit NonFiniteRow(std::int64_t most) : most_(most) {}

  // Counts a step. Returns whether the row has reached the limit.
  bool add(const StepRecord& step);
  // Returns the warning for the newest step. `found` describes its tensors.
  std::string warning(const StepRecord& step, const NonFinite& found) const;
  // The error that ends the run.
  std::string ending(const StepRecord& step, const NonFinite& found) const;

 private:
  std::int64_t most_;
  std::int64_t row_ = 0;
};

}  // namespace train

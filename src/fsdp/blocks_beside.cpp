// How many blocks of a GPU the updates beside a forward take.
#include <algorithm>
#include <cmath>

#include "atoll/optimizer.hpp"
#include "core/errors.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll::fsdp {

unsigned blocks_beside_forward(const MemoryPlan& memory, double forward_seconds,
                               std::optional<unsigned> last) {
  require(std::isfinite(forward_seconds) && forward_seconds > 0,
          "blocks_beside_forward: {} s must be finite and above 0", forward_seconds);
  constexpr double step = 8, most = 32;
  // An update reads the f32 gradients of trainable parameters, reads and writes as many weights and
  // the moments, and writes a copy of the weights in 16 bits.
  const auto bytes =
      static_cast<double>(3 * memory.gradients + 2 * memory.optimizer + memory.gradients / 2);
  const double needed = bytes / bytes_per_s_of_block / forward_seconds;
  // With `most` blocks, updates that take 1.5 times as long as the forward cost as much beside it
  // as before it. After updates before a forward, updates beside one must end within it, so that
  // small changes of the time do not change the choice from step to step.
  const double limit = last == 0U ? most : 1.5 * most;
  if (needed > limit) return 0;
  const double rounded = std::clamp(step * std::ceil(needed / step), step, most);
  const double before = last.value_or(0);
  const bool keeps = rounded < before && needed > before - 1.5 * step;
  return static_cast<unsigned>(keeps ? before : rounded);
}

unsigned blocks_beside_forward(const MemoryPlan& memory, double forward_seconds) {
  return blocks_beside_forward(memory, forward_seconds, std::nullopt);
}

}  // namespace atoll_v1::atoll::fsdp

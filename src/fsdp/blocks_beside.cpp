// Chooses the number of GPU thread blocks for optimizer updates that run beside a forward pass.
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
  // The update of the trainable parameters reads their f32 gradients, reads and writes their f32
  // weights and the moments, and writes a 16-bit copy of the weights.
  const auto bytes =
      static_cast<double>(3 * memory.gradients + 2 * memory.optimizer + memory.gradients / 2);
  const double needed = bytes / bytes_per_s_of_block / forward_seconds;
  // Updates beside the forward pay off as long as they take at most 1.5 times as long as the
  // forward. After a step with updates before the forward (`last` is 0) they must fit into the
  // forward, so that the choice does not change in every step.
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

#include <fmt/core.h>

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

std::uint64_t MemoryPlan::total() const noexcept {
  return parameters + resident + optimizer + gradients + gathered + inner_shards + whole_gradients +
         staging + activations;
}

std::string MemoryPlan::to_string() const {
  std::string text = fmt::format("{:<34}{:>16}\n", "memory of this rank", "bytes");
  const auto row = [&](std::string_view what, std::uint64_t bytes) {
    text += fmt::format("  {:<32}{:>16}\n", what, bytes);
  };
  row("parameters (master shards)", parameters);
  row("parameters (whole, resident)", resident);
  row("optimizer", optimizer);
  row("gradients (f32 shards)", gradients);
  row("parameters (gathered, passing)", gathered);
  row("parameters (inner shards)", inner_shards);
  row("whole gradients", whole_gradients);
  row("staging", staging);
  row("activations (the consumer's)", activations);
  row("total", total());
  return text;
}

}  // namespace atoll_v1::atoll::fsdp

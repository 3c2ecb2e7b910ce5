#include <fmt/core.h>

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

std::uint64_t MemoryPlan::total() const noexcept {
  return parameters + parameters_low + optimizer + gradients + gathered + gradients_whole + staging;
}

std::string MemoryPlan::to_string() const {
  std::string text = fmt::format("{:<34}{:>16}\n", "memory of this rank", "bytes");
  const auto row = [&](std::string_view what, std::uint64_t bytes) {
    text += fmt::format("  {:<32}{:>16}\n", what, bytes);
  };
  row("parameters (f32 shards)", parameters);
  row("parameters (resident, compute)", parameters_low);
  row("optimizer", optimizer);
  row("gradients (f32 shards)", gradients);
  row("gathered parameters", gathered);
  row("whole gradients", gradients_whole);
  row("staging", staging);
  row("total", total());
  return text;
}

}  // namespace atoll_v1::atoll::fsdp

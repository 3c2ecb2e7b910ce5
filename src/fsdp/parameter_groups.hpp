// Parameter groups: finds the optimizer settings that apply to each element of a bucket.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "atoll/optimizer.hpp"
#include "fsdp/setup.hpp"

namespace atoll_v1::atoll::fsdp {

// Consecutive elements of a bucket's shard that are updated with the same settings.
struct UpdateRange {
  std::uint64_t first, count;
  ParamSettings settings;
};

// Returns whether a shell pattern matches the whole text: * stands for any text, ? for a character.
bool matches(std::string_view pattern, std::string_view text) noexcept;

// Throws Error(invalid_argument) that names the setting and its group, unless `is_fine`.
void check_range(bool is_fine, std::string_view setting, float value, std::string_view range,
                 std::optional<std::string_view> group = {});

// Throws Error(invalid_argument) that names the setting or the group, for a setting out of range,
// or for a group with a pattern that matches no parameter.
void check_groups(const EngineSetup& setup, const OptimizerOptions& options);

// Returns the settings of each parameter, in the order of units and their parameters.
std::vector<ParamSettings> settings_of_all(const EngineSetup& setup,
                                           const OptimizerOptions& options);

// Splits this rank's shard of a bucket into ranges. Neighbours with equal settings form one range,
// and a range includes the padding after its parameters, which no update changes. Ranges begin at
// multiples of bucket_alignment.
std::vector<UpdateRange> update_ranges(const EngineSetup& setup, const UnitState& unit,
                                       std::size_t bucket, const OptimizerOptions& options);

}  // namespace atoll_v1::atoll::fsdp

#include "fsdp/parameter_groups.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

std::string full_name(const UnitState& unit, const ParamSpec& param) {
  return fmt::format("{}.{}", unit.name, param.name);
}

// Checks the settings that OptimizerOptions has, and that a parameter group may have.
void check_settings(float weight_decay, float beta1, float beta2,
                    std::optional<std::string_view> group = {}) {
  check_range(beta1 >= 0 && beta1 < 1, "beta1", beta1, "in [0, 1)", group);
  check_range(beta2 >= 0 && beta2 < 1, "beta2", beta2, "in [0, 1)", group);
  check_range(weight_decay >= 0, "weight_decay", weight_decay, "0 or above", group);
}

ParamSettings settings_of(const UnitState& unit, const ParamSpec& param,
                          const OptimizerOptions& options) {
  const bool decays = options.decay == Decay::all || param.shape.size() >= 2;
  ParamSettings settings{1.0f, decays ? options.weight_decay : 0.0f, options.beta1, options.beta2};
  const std::string name = full_name(unit, param);
  const auto group = std::ranges::find_if(
      options.groups, [&](const ParamGroup& it) { return matches(it.pattern, name); });
  if (group == options.groups.end()) return settings;
  return {group->learning_rate_scale, group->weight_decay.value_or(settings.weight_decay),
          group->beta1.value_or(settings.beta1), group->beta2.value_or(settings.beta2)};
}

}  // namespace

std::string_view name(Decay decay) noexcept { return decay == Decay::all ? "all" : "matrices"; }

void check_range(bool is_fine, std::string_view setting, float value, std::string_view range,
                 std::optional<std::string_view> group) {
  if (is_fine) return;
  const std::string where = group ? fmt::format(" of the group \"{}\"", *group) : "";
  throw invalid("OptimizerOptions: {} = {}{} is not {}", setting, value, where, range);
}

bool matches(std::string_view pattern, std::string_view text) noexcept {
  std::size_t p = 0, t = 0;
  // After a mismatch, the last * matches one more character, and the rest is compared again.
  std::size_t star = std::string_view::npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

void check_groups(const EngineSetup& setup, const OptimizerOptions& options) {
  check_settings(options.weight_decay, options.beta1, options.beta2);
  std::vector<std::string> names;
  for (const auto& unit : setup.units) {
    const UnitState& state = state_of(*unit);
    for (const ParamSpec& param : state.params) names.push_back(full_name(state, param));
  }
  for (const ParamGroup& group : options.groups) {
    const float scale = group.learning_rate_scale;
    check_range(std::isfinite(scale) && scale >= 0, "learning_rate_scale", scale,
                "finite and 0 or above", group.pattern);
    check_settings(group.weight_decay.value_or(0.0f), group.beta1.value_or(0.0f),
                   group.beta2.value_or(0.0f), group.pattern);
    const bool is_used = std::ranges::any_of(
        names, [&](const std::string& name) { return matches(group.pattern, name); });
    require(is_used,
            "OptimizerOptions: the pattern \"{}\" of a group matches no parameter; {} is one of "
            "the names",
            group.pattern, names.empty() ? "none" : names.front());
  }
}

std::vector<ParamSettings> settings_of_all(const EngineSetup& setup,
                                           const OptimizerOptions& options) {
  std::vector<ParamSettings> all;
  for (const auto& unit : setup.units) {
    const UnitState& state = state_of(*unit);
    for (const ParamSpec& param : state.params) all.push_back(settings_of(state, param, options));
  }
  return all;
}

std::vector<ParamSettings> use_groups(Engine& engine, const OptimizerOptions& options) {
  EngineSetup& setup = EngineAccess::setup(engine);
  agree(setup.ranks, "use_groups", [&] {
    setup.check_planned("use_groups");
    check_groups(setup, options);
    return declarations_of(options);
  });
  return setup.settings = settings_of_all(setup, options);
}

std::vector<UpdateRange> update_ranges(const EngineSetup& setup, const UnitState& unit,
                                       std::size_t bucket, const OptimizerOptions& options) {
  const std::uint64_t n = unit.buckets[bucket].gradient.count;
  const std::uint64_t begin = n * static_cast<std::uint64_t>(setup.scheduler.shard_index());
  // Ranges of the whole bucket, each up to the first element of the next.
  std::vector<UpdateRange> whole;
  for (std::size_t p = 0; p < unit.params.size(); ++p) {
    const auto& [index, slot] = unit.locations[p];
    if (index != bucket || slot.count == 0) continue;
    const ParamSettings settings = settings_of(unit, unit.params[p], options);
    if (!whole.empty() && whole.back().settings == settings) continue;
    whole.push_back({slot.offset, 0, settings});
  }
  std::vector<UpdateRange> mine;
  for (std::size_t r = 0; r < whole.size(); ++r) {
    const std::uint64_t end =
        r + 1 < whole.size() ? whole[r + 1].first : unit.buckets[bucket].layout.elements;
    const std::uint64_t first = std::max(whole[r].first, begin), last = std::min(end, begin + n);
    if (first < last) mine.push_back({first - begin, last - first, whole[r].settings});
  }
  return mine;
}

}  // namespace atoll_v1::atoll::fsdp

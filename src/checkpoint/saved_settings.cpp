#include "checkpoint/saved_settings.hpp"

#include <fmt/core.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "core/errors.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using nlohmann::json;

struct Setting {
  const char* key;
  const char* name;  // name of the setting in messages
  float ParamSettings::*value;
};
constexpr std::array settings_of_index{
    Setting{"learning_rate_scale", "learning rate scale", &ParamSettings::learning_rate_scale},
    Setting{"weight_decay", "weight decay", &ParamSettings::weight_decay},
    Setting{"beta1", "beta1", &ParamSettings::beta1},
    Setting{"beta2", "beta2", &ParamSettings::beta2}};

// Returns the shortest number that a reader converts back to `value`: 0.9 instead of 0.8999999762.
double readable(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

}  // namespace

json describe_settings(const NamedSettings& settings) {
  if (settings.empty()) return nullptr;
  json all = json::object();
  for (const auto& [name, values] : settings) {
    // Not null at first: if an allocation fails while nlohmann's library turns a null value into an
    // object, the value is invalid, and cannot even be destroyed.
    json& one = all[name] = json::object();
    for (const Setting& setting : settings_of_index) {
      one[setting.key] = readable(values.*setting.value);
    }
  }
  return all;
}

std::string other_settings(const json& index, const NamedSettings& settings,
                           const std::filesystem::path& file) {
  const auto stored = index.find("settings");
  // Checkpoints of earlier versions of the library have no settings.
  if (stored == index.end() || stored->is_null()) return "";
  std::string first;
  std::size_t differing = 0;
  for (const auto& [name, values] : settings) {
    const auto saved = stored->find(name);
    if (saved == stored->end()) continue;
    bool differs = false;
    for (const Setting& setting : settings_of_index) {
      const json& value = saved->at(setting.key);
      require(value.is_number(), ErrorCode::bad_data,
              "{}: \"{}\" of the settings of {} is not a number", file.string(), setting.key, name);
      const auto before = value.get<float>(), now = values.*setting.value;
      if (before == now) continue;
      differs = true;
      if (!first.empty()) continue;
      first = fmt::format("the {} of {} is {} in the checkpoint and {} in the job", setting.name,
                          name, before, now);
    }
    if (differs) ++differing;
  }
  if (differing == 0) return "";
  return fmt::format(
      "{}: the optimizer had other settings (groups, decay): {}; {} of {} parameters differ",
      file.string(), first, differing, stored->size());
}

}  // namespace atoll_v1::atoll::fsdp

#include "checkpoint/content.hpp"

#include <fmt/core.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "checkpoint/index.hpp"
#include "core/errors.hpp"
#include "fsdp/pass_state.hpp"
#include "fsdp/reducing.hpp"
#include "fsdp/setup.hpp"

namespace atoll_v1::atoll::fsdp {

using nlohmann::json;

std::string tensor_name(std::string_view unit, std::string_view bucket, std::string_view what) {
  return fmt::format("{}/{}/{}", unit, bucket, what);
}

std::string state_tensor(std::string_view state) { return fmt::format("state.{}", state); }

std::string whole_tensor(std::string_view unit, std::string_view param, std::string_view state) {
  return fmt::format("{}/whole.{}/{}", unit, param, state_tensor(state));
}

namespace {

// Adds the states that are not elementwise, of parameters whose first element is in this rank's
// shard of the bucket.
void add_wholes(UnitTensors& tensors, std::size_t bucket, const EngineSetup& setup,
                const UnitState& unit) {
  const std::uint64_t each = unit.buckets[bucket].layout.shard_elements();
  const auto shard = static_cast<std::uint64_t>(setup.scheduler.shard_index());
  for (const auto& [name, own] : setup.states) {
    if (own.wholes.empty()) continue;
    for (std::size_t p = 0; p < unit.params.size(); ++p) {
      const auto& [index, slot] = unit.locations[p];
      const View whole = own.wholes[unit.index][p];
      if (index != bucket || slot.offset / each != shard || whole.count == 0) continue;
      tensors.tensors.emplace_back(whole_tensor(unit.name, unit.params[p].name, name), whole);
    }
  }
}

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

// Returns the settings by name; null if there are none.
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

}  // namespace

std::vector<UnitTensors> tensors_of(Engine& engine, const Optimizer* optimizer) {
  const EngineSetup& setup = EngineAccess::setup(engine);
  std::vector<UnitTensors> all;
  for (const auto& entry : setup.units) {
    const UnitState& unit = state_of(*entry);
    UnitTensors& one = all.emplace_back();
    one.unit = unit.index;
    for (std::size_t b = 0; b < unit.buckets.size(); ++b) {
      const UnitBucket& bucket = unit.buckets[b];
      const auto add = [&](std::string_view what, View view) {
        one.tensors.emplace_back(tensor_name(unit.name, bucket.label(), what), view);
      };
      add("weights", bucket.master);
      const auto [first, second] =
          optimizer ? EngineAccess::moments(*optimizer, *entry, b) : Moments();
      if (first.count) {
        add("moment1", first);
        add("moment2", second);
      }
      for (const auto& [state, own] : setup.states) {
        if (bucket.trainable && !own.parts.empty())
          add(state_tensor(state), own.parts[unit.index][b]);
      }
      add_wholes(one, b, setup, unit);
    }
  }
  return all;
}

NamedSettings named_settings(const Engine& engine) {
  NamedSettings named;
  auto settings = EngineAccess::setup(engine).settings.begin();
  for (const auto& unit : engine.units()) {
    for (const ParamSpec& param : unit->params()) {
      if (settings == EngineAccess::setup(engine).settings.end()) return named;
      if (param.trainable)
        named.emplace_back(fmt::format("{}.{}", unit->name(), param.name), *settings);
      ++settings;
    }
  }
  return named;
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

std::string_view kind_of(const Optimizer* optimizer) {
  if (!optimizer) return "own";
  return optimizer->options().kind == OptimizerOptions::Kind::adamw ? "adamw" : "sgd";
}

json describe(Engine& engine, const Optimizer* optimizer,
              const std::map<std::string, std::string>& extra) {
  json states = json::array(), counts = json::object();
  for (const auto& [state, own] : EngineAccess::setup(engine).states) {
    states.push_back(state);
    if (!own.counts.empty()) counts[state] = own.counts;
  }
  json units = json::array();
  for (const auto& unit : engine.units()) {
    const UnitState& state = state_of(*unit);
    json params = json::array(), buckets = json::array();
    for (std::size_t p = 0; p < state.params.size(); ++p) {
      params.push_back({{"name", state.params[p].name},
                        {"shape", state.params[p].shape},
                        {"bucket", state.locations[p].bucket},
                        {"offset", state.locations[p].slot.offset}});
    }
    for (const UnitBucket& bucket : state.buckets) {
      buckets.push_back({{"name", bucket.label()}, {"elements", bucket.layout.elements}});
    }
    units.push_back(
        {{"name", state.name}, {"buckets", std::move(buckets)}, {"params", std::move(params)}});
  }
  return {{"format", checkpoint_format},
          {"shards", engine.scheduler().shard_count()},
          {"optimizer", kind_of(optimizer)},
          {"states", std::move(states)},
          {"state_elements", std::move(counts)},
          {"settings", describe_settings(named_settings(engine))},
          {"steps", optimizer ? optimizer->steps() : 0},
          {"units", std::move(units)},
          {"extra", extra}};
}

void check_optimizer(std::string_view call, Engine& engine, const Optimizer* optimizer) {
  if (optimizer) {
    require(EngineAccess::is_optimizer_of(engine, *optimizer),
            "{}: the Optimizer belongs to another engine: pass the Optimizer of this engine", call);
    return;
  }
  require(!EngineAccess::reducing(engine).has_on_final(),
          "{}: the engine has an Optimizer: pass it, because its moments belong to the checkpoint",
          call);
}

}  // namespace atoll_v1::atoll::fsdp

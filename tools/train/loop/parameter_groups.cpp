#include "loop/parameter_groups.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "fail.hpp"
#include "model/params.hpp"

namespace train {
namespace {

namespace fsdp = atoll::fsdp;

constexpr std::string_view embedding_name = "model.embed_tokens.weight";
constexpr std::string_view example = "'*norm.weight:lr_scale=0.1,weight_decay=0'";

float parse_number(const std::string& text, std::string_view setting, std::string_view value) {
  float number = 0;
  const char* const end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, number);
  require(parsed.ec == std::errc() && parsed.ptr == end && std::isfinite(number),
          "--group {}: {}={} is not a number", text, setting, value);
  return number;
}

// Adds "SETTING=NUMBER" to the group.
void add_setting(fsdp::ParamGroup& group, const std::string& text, std::string_view part) {
  const std::size_t equals = part.find('=');
  require(equals != part.npos, "--group {}: \"{}\" is not SETTING=NUMBER, as in {}", text, part,
          example);
  const std::string_view setting = part.substr(0, equals);
  const auto number = [&](bool (*is_fine)(float), std::string_view range) {
    const float value = parse_number(text, setting, part.substr(equals + 1));
    require(is_fine(value), "--group {}: {} is not {}", text, part, range);
    return value;
  };
  const auto positive = [](float value) { return value >= 0; };
  const auto below_one = [](float value) { return value >= 0 && value < 1; };
  if (setting == "lr_scale") {
    group.learning_rate_scale = number(positive, "0 or above");
  } else if (setting == "weight_decay") {
    group.weight_decay = number(positive, "0 or above");
  } else if (setting == "beta1") {
    group.beta1 = number(below_one, "in [0, 1)");
  } else if (setting == "beta2") {
    group.beta2 = number(below_one, "in [0, 1)");
  } else {
    fail(ErrorCode::invalid_argument,
         "--group {}: \"{}\" is not a setting: use lr_scale, weight_decay, beta1 or beta2{}", text,
         setting, setting == "lr" ? "; lr_scale is a factor of --lr" : "");
  }
}

}  // namespace

fsdp::ParamGroup parse_group(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  require(colon != text.npos && colon > 0 && colon + 1 < text.size(),
          "--group {}: use PATTERN:SETTING=NUMBER,..., as in {}", text, example);
  fsdp::ParamGroup group{.pattern = text.substr(0, colon)};
  std::set<std::string_view> seen;
  for (std::size_t begin = colon + 1, end = 0; begin <= text.size(); begin = end + 1) {
    end = std::min(text.find(',', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    add_setting(group, text, part);
    const std::string_view setting = part.substr(0, part.find('='));
    require(seen.insert(setting).second, "--group {}: {} is there twice", text, setting);
  }
  return group;
}

std::vector<fsdp::ParamGroup> param_groups(const fsdp::Engine& engine,
                                           const std::vector<std::string>& texts) {
  struct Name {
    std::string own, hf;  // the parameter's name in the engine, and in Hugging Face files
    bool in_group = false;
  };
  std::vector<Name> names;
  for (const auto& unit : engine.units()) {
    for (const auto& param : unit->params()) {
      if (!param.trainable) continue;
      names.push_back(
          {fmt::format("{}.{}", unit->name(), param.name), hf_name(unit->name(), param.name)});
    }
  }
  std::vector<fsdp::ParamGroup> groups;
  for (const std::string& text : texts) {
    const fsdp::ParamGroup group = parse_group(text);
    std::size_t matching = 0, added = 0;
    for (Name& name : names) {
      if (::fnmatch(group.pattern.c_str(), name.hf.c_str(), 0) != 0) continue;
      ++matching;
      if (std::exchange(name.in_group, true)) continue;
      ++added;
      groups.push_back(group);
      groups.back().pattern = name.own;
    }
    require(matching > 0, "--group {}: matches no trainable parameter; {} is one of their names",
            group.pattern, names.front().hf);
    require(added > 0, "--group {}: has no effect: earlier groups match all its parameters",
            group.pattern);
  }
  return groups;
}

void spare_embedding(const fsdp::Engine& engine, std::vector<fsdp::ParamGroup>& groups) {
  for (const auto& unit : engine.units()) {
    for (const auto& param : unit->params()) {
      if (!param.trainable || hf_name(unit->name(), param.name) != embedding_name) continue;
      const std::string own = fmt::format("{}.{}", unit->name(), param.name);
      const auto found = std::ranges::find(groups, own, &fsdp::ParamGroup::pattern);
      if (found == groups.end()) {
        groups.push_back({.pattern = own, .weight_decay = 0.0F});
      } else if (!found->weight_decay) {
        found->weight_decay = 0.0F;
      }
    }
  }
}

}  // namespace train

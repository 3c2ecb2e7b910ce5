// JSON documents in which one member is missing or of another kind.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace atoll_test {

// Calls `visit` with each form of the document in which one member, at any depth, is missing, null
// or of another kind, and with a text that says which.
inline void each_damage(
    const nlohmann::json& document,
    const std::function<void(const nlohmann::json&, const std::string&)>& visit) {
  using nlohmann::json;
  std::vector<json::json_pointer> places;
  const std::function<void(const json&, const json::json_pointer&)> collect =
      [&](const json& node, const json::json_pointer& at) {
        if (!node.is_structured()) return;
        for (const auto& [key, value] : node.items()) {
          places.push_back(node.is_array() ? at / static_cast<std::size_t>(std::stoul(key))
                                           : at / key);
          collect(value, json::json_pointer(places.back()));
        }
      };
  collect(document, json::json_pointer());
  const json others[] = {nullptr,
                         "x",
                         -1,
                         0.5,
                         true,
                         1e300,
                         json::array(),
                         json::array({1}),
                         json::object(),
                         json::object({{"a", 1}}),
                         18446744073709551615ULL};
  for (const auto& place : places) {
    for (const json& other : others) {
      json changed = document;
      changed[place] = other;
      visit(changed, place.to_string() + " = " + other.dump());
    }
    if (!document.at(place.parent_pointer()).is_object()) continue;
    json changed = document;
    changed[place.parent_pointer()].erase(place.back());
    visit(changed, "without " + place.to_string());
  }
}

}  // namespace atoll_test

// The parts of which atoll's JSON form is written.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::topology_json {

using Json = nlohmann::ordered_json;

// Names come from the machine: bytes that are not UTF-8 are replaced, never thrown at.
std::string print(const Json& value);

// Appends the member `name`, one element a line, so that a diff of two files shows what changed.
// `value` turns an element into JSON.
template <class T, class Value>
void append_list(std::string& text, std::string_view name, const std::vector<T>& list,
                 const Value& value) {
  text += fmt::format(",\n  \"{}\": [", name);
  for (std::size_t i = 0; i < list.size(); ++i) {
    text += i == 0 ? "\n    " : ",\n    ";
    text += print(value(list[i]));
  }
  text += list.empty() ? "]" : "\n  ]";
}

// The members of a topology and its islands: everything but the closing brace.
std::string body(const Topology& topology, const std::vector<Island>& islands);

}  // namespace atoll_v1::atoll::topology_json

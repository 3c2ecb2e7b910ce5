// Building blocks for writing atoll's JSON form.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::topology_json {

using Json = nlohmann::ordered_json;

// Prints one value. Replaces bytes that are not UTF-8, because names come from the machine.
std::string print(const Json& value);

// Appends the list `name` with one element on each line, so that a diff of two files shows which
// elements changed. `value` converts an element to JSON.
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

// Writes the topology and its islands, without the closing brace.
std::string body(const Topology& topology, const std::vector<Island>& islands);

}  // namespace atoll_v1::atoll::topology_json

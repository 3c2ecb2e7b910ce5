// Helpers of tests of importers and of other sources of topologies.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/topology.hpp"
#include "facts.hpp"

namespace topology_test {

// Returns the message of the Error(bad_data) that `read` throws for `text`.
template <class Read>
std::string error_of(const Read& read, const std::string& text) {
  try {
    read(text);
  } catch (const atoll::Error& error) {
    CHECK(error.code() == atoll::ErrorCode::bad_data);
    return error.what();
  }
  return "no error";
}

inline std::vector<std::size_t> island_sizes(const atoll::Topology& topology) {
  std::vector<std::size_t> sizes;
  for (const auto& island : atoll::find_islands(topology)) sizes.push_back(island.gpus.size());
  return sizes;
}

// Returns a line for each NIC: id, bus id, link layer, state and rate, with "-" for unknown ones.
inline std::string nics_of(const atoll::Topology& topology) {
  const auto known = [](const std::string& text) { return text.empty() ? "-" : text; };
  std::string lines;
  for (const auto& nic : topology.nics)
    lines +=
        fmt::format("{} {} {} {} {}{}\n", nic.id, known(nic.busid), known(nic.layer),
                    known(nic.state), nic.rate_gbit_s ? fmt::format("{}", *nic.rate_gbit_s) : "-",
                    nic.is_virtual ? " virtual" : "");
  return lines;
}

// Expects facts such as "pci.width 8; mig no; xgmi.hive", each with its value, or absent if it has
// no value here.
inline void check_facts(const atoll::Facts& facts, std::string_view expected) {
  while (!expected.empty()) {
    const std::string_view one = expected.substr(0, expected.find("; "));
    expected.remove_prefix(std::min(one.size() + 2, expected.size()));
    const std::string_view name = one.substr(0, one.find(' '));
    const std::string_view value = one.substr(std::min(name.size() + 1, one.size()));
    CAPTURE(std::string(name));
    CHECK(std::string(atoll::get_fact(facts, name)) == std::string(value));
  }
}

}  // namespace topology_test

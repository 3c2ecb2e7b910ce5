// Helpers of tests of importers.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/topology.hpp"

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

}  // namespace topology_test

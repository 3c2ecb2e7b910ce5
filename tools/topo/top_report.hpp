// Formats the output of --top: a table, or a line of JSON.
#pragma once

#include <string>
#include <vector>

#include "atoll/tooling/observer.hpp"

namespace topo {

// Size of the terminal; 0: unlimited.
struct Limits {
  int lines = 0;
  int columns = 0;
};

// The answers of the ranks now and for the last table. Bandwidths follow from the difference.
struct View {
  const std::string& address;
  const std::vector<atoll::ObservedRank>& ranks;
  const std::vector<atoll::ObservedRank>& previous;  // empty the first time
};

std::string table_of(const View& view, const Limits& limits);
std::string json_of(const View& view);
std::string json_of(const std::string& end);  // the last line: the reason for the end

}  // namespace topo

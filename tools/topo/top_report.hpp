// What --top prints: a table for people, or a line of JSON.
#pragma once

#include <string>
#include <vector>

#include "atoll/observer.hpp"

namespace topo {

// Size of the terminal; 0: unlimited.
struct Limits {
  int lines = 0;
  int columns = 0;
};

// What an observer has seen now and the last time; the difference gives bandwidths.
struct View {
  const std::string& address;
  const std::vector<atoll::ObservedRank>& ranks;
  const std::vector<atoll::ObservedRank>& previous;  // empty the first time
};

std::string table_of(const View& view, const Limits& limits);
std::string json_of(const View& view);
std::string json_of(const std::string& end);  // why nothing more is printed

}  // namespace topo

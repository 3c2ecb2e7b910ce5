// Tables, targets and JSON output of tests/bench/collectives.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sweep.hpp"

namespace atoll_bench {

// A figure of the summary and its required value.
struct Target {
  std::string name;
  double value = 0;
  double bound = 0;
  bool at_least = true;  // true if `wanted` is a minimum, false if it is a maximum
  std::string unit;      // "%" or "x"
  std::string where;     // for a worst case: the row in which it occurred
  std::size_t rows = 0;  // number of rows in the figure
  bool met() const { return at_least ? value >= bound : value <= bound; }
};

// Returns the targets for which there are rows.
std::vector<Target> targets(const Result& result);

// Bus bandwidth in GB/s (1e9 B/s), as nccl-tests defines it.
double bus_bandwidth(const Key& key, double seconds);

void print_tables(const Result& result);
void print_targets(const std::vector<Target>& targets);
// Returns the members `rows` and `summary`.
nlohmann::json json(const Result& result, const std::vector<Target>& targets);

}  // namespace atoll_bench

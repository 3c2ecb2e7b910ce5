// The output of bench_collectives: tables, comparison with the speed that is wanted, and JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sweep.hpp"

namespace atoll_bench {

// A value in the summary of the bench, and the value that is required.
struct Target {
  std::string name;
  double value = 0;
  double bound = 0;
  bool at_least = true;  // true if `bound` is a minimum, false if it is a maximum
  std::string unit;      // unit of the value: "%" or "x"
  std::string where;     // the row with the worst value, if the value is a worst case
  std::size_t rows = 0;  // number of measured rows from which the value was computed
  bool met() const { return at_least ? value >= bound : value <= bound; }
};

// Returns those targets for which rows were measured.
std::vector<Target> targets(const Result& result);

// Returns the bus bandwidth in GB/s (1e9 B/s), as nccl-tests defines it.
double bus_bandwidth(const Key& key, double seconds);

void print_tables(const Result& result);
void print_targets(const std::vector<Target>& targets);
// Returns a JSON object with the members `rows`, `summary`, `absent` and `wrong`.
nlohmann::json json(const Result& result, const std::vector<Target>& targets);

}  // namespace atoll_bench

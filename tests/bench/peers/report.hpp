// The tables, the targets and the JSON of tests/bench/collectives.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sweep.hpp"

namespace atoll_bench {

// A figure of the summary next to what it should be.
struct Target {
  std::string name;
  double value = 0;
  double bound = 0;
  bool at_least = true;  // else at most
  std::string unit;      // "%" or "x"
  std::string where;     // which row, for the worst of some
  std::size_t rows = 0;  // that went into it
  bool met() const { return at_least ? value >= bound : value <= bound; }
};

// Those for which there are rows.
std::vector<Target> targets(const Result& result);

// Bus bandwidth in GB/s (1e9 B/s) as nccl-tests defines it.
double bus_bandwidth(const Key& key, double seconds);

void print_tables(const Result& result);
void print_targets(const std::vector<Target>& targets);
// `rows` and `summary`.
nlohmann::json json(const Result& result, const std::vector<Target>& targets);

}  // namespace atoll_bench

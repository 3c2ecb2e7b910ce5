// Watches a running job (--top), and formats what it shows: a table, or a line of JSON.
#pragma once

#include <string>
#include <vector>

#include "atoll/config.hpp"
#include "atoll/tooling/observer.hpp"
#include "options.hpp"

namespace topo {

// Size of the terminal; 0: unlimited.
struct Limits {
  int lines = 0;
  int columns = 0;
};

// The answers of the ranks, now and at the previous table. Their differences give the bandwidths.
struct View {
  const std::string& address;
  const std::vector<atoll::ObservedRank>& ranks;
  const std::vector<atoll::ObservedRank>& previous;  // empty for the first table
};

std::string table_of(const View& view, const Limits& limits);
std::string json_of(const View& view);
std::string json_of(const std::string& end);  // the last line: the reason for the end

// --- Defined in top.cpp ---

// Prints what the ranks do until the job ends, the requested number of times is reached, or the
// user interrupts. Returns the exit status: 0, or 1 if the job has failed. Throws the errors of
// atoll::Observer.
int watch(const TopOptions& options, const atoll::Config& config);

}  // namespace topo

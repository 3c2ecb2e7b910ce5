// The spans of a Chrome trace, and the step of it that a page shows.
#pragma once

#include <limits>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace train::page {

struct Span {
  int rank = 0;
  int row = 0;
  double begin = 0, end = 0;  // in microseconds
  std::string name, kind;     // such as "forward layers.0" and "work"
  double bytes = 0;           // of a collective: the whole tensor
};

struct Trace {
  std::map<int, std::string> ranks;                 // names of processes
  std::map<std::pair<int, int>, std::string> rows;  // names of threads, by rank and row
  std::vector<Span> spans;
};

// Throws nlohmann::json::exception if the events have another form than atoll's.
Trace spans_of(const nlohmann::json& document);

// A part of a trace. The name is empty if there is none.
struct Window {
  std::string name;
  double begin = std::numeric_limits<double>::infinity();
  double end = -std::numeric_limits<double>::infinity();
};

// The traced step of median duration, over all ranks.
Window median_step(const Trace& trace);

}  // namespace train::page

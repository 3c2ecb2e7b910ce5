#include "page/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "page/run_files.hpp"

namespace train::page {
namespace {

using nlohmann::json;

constexpr std::size_t most_ranks = 8;
constexpr double narrowest = 0.0003;  // fraction of the step's duration; shorter spans are left out
constexpr std::size_t most_spans = 40'000;
constexpr double infinity = std::numeric_limits<double>::infinity();

struct Span {
  int rank = 0, row = 0;
  double begin = 0, end = 0;
  std::string name, kind;  // such as "forward layers.0" and "work"
  double bytes = 0;        // bytes of the whole tensor of a collective
};

struct Trace {
  std::set<int> ranks;
  std::map<std::pair<int, int>, std::string> rows;  // names of threads, by rank and row
  std::vector<Span> spans;
};

Trace spans_of(const json& document) {
  Trace out;
  for (const json& event : document.at("traceEvents")) {
    if (!event.is_object()) continue;
    const int rank = event.value("pid", 0), row = event.value("tid", 0);
    const std::string kind = event.value("ph", ""), name = event.value("name", "");
    const json args = event.value("args", json::object());
    if (kind == "M") {
      if (name == "process_name") out.ranks.insert(rank);
      if (name == "thread_name") out.rows[{rank, row}] = args.value("name", "");
    } else if (kind == "X") {
      const double begin = number(event, "ts");
      out.spans.push_back({rank, row, begin, begin + number(event, "dur"), name,
                           event.value("cat", ""), args.value("bytes", 0.0)});
    }
  }
  return out;
}

struct Window {
  std::string name;
  double begin = infinity, end = -infinity;
  double us() const { return end - begin; }
};

// The traced steps, each from the first begin to the last end on any rank, sorted by duration.
std::vector<Window> steps_of(const Trace& trace) {
  std::map<std::string, Window> steps;
  for (const Span& span : trace.spans) {
    const auto row = trace.rows.find({span.rank, span.row});
    if (row == trace.rows.end() || row->second != "step") continue;
    Window& step = steps[span.name];
    step.name = span.name;
    step.begin = std::min(step.begin, span.begin);
    step.end = std::max(step.end, span.end);
  }
  std::vector<Window> all;
  for (auto& [name, step] : steps) {
    if (step.us() > 0 && std::isfinite(step.us())) all.push_back(step);
  }
  std::ranges::stable_sort(all, {}, &Window::us);
  return all;
}

// Returns when the previous step began. A gather since then may fetch parameters for this step.
double begin_before(const std::vector<Window>& steps, const Window& step) {
  double latest = -infinity;
  for (const Window& other : steps) {
    if (other.begin < step.begin) latest = std::max(latest, other.begin);
  }
  return latest;
}

double to_nanosecond(double us) { return std::round(us * 1e3) / 1e3; }

}  // namespace

json timeline_of(const json& document) {
  const Trace trace = spans_of(document);
  const auto steps = steps_of(trace);
  if (steps.empty()) return nullptr;
  const Window& step = steps[steps.size() / 2];
  json rows = json::array(), spans = json::array();
  std::set<std::pair<int, int>> shown;
  std::size_t ranks = 0;
  for (const int rank : trace.ranks) {
    if (ranks++ == most_ranks) break;
    for (const auto& [place, row] : trace.rows) {
      if (place.first != rank || row == "step") continue;
      shown.insert(place);
      rows.push_back({rank, place.second, row});
    }
  }
  const int lowest = shown.empty() ? 0 : shown.begin()->first;
  const double earliest = begin_before(steps, step);
  for (const Span& span : trace.spans) {
    if (!shown.contains({span.rank, span.row}) || spans.size() == most_spans) continue;
    const double seen = std::min(span.end, step.end) - std::max(span.begin, step.begin);
    const bool is_needed = span.rank == lowest && span.begin >= earliest && span.begin < step.end;
    if (!is_needed && !(seen >= narrowest * step.us())) continue;
    spans.push_back({span.rank, span.row, to_nanosecond(span.begin - step.begin),
                     to_nanosecond(span.end - span.begin), span.name, span.kind, span.bytes});
  }
  return {{"name", step.name},
          {"us", to_nanosecond(step.us())},
          {"ranks", trace.ranks.size()},
          {"rows", std::move(rows)},
          {"spans", std::move(spans)}};
}

}  // namespace train::page

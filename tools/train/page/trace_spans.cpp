#include "page/trace_spans.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "page/run_files.hpp"

namespace train::page {

using nlohmann::json;

Trace spans_of(const json& document) {
  Trace out;
  for (const json& event : document.at("traceEvents")) {
    if (!event.is_object()) continue;
    const int rank = event.value("pid", 0), row = event.value("tid", 0);
    const std::string kind = event.value("ph", ""), name = event.value("name", "");
    const json args = event.value("args", json::object());
    if (kind == "M") {
      const std::string called = args.value("name", "");
      if (name == "process_name") out.ranks[rank] = called;
      if (name == "thread_name") out.rows[{rank, row}] = called;
    } else if (kind == "X") {
      const double begin = number(event, "ts");
      out.spans.push_back({rank, row, begin, begin + number(event, "dur"), name,
                           event.value("cat", ""), args.value("bytes", 0.0)});
    }
  }
  return out;
}

Window median_step(const Trace& trace) {
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
    if (step.end > step.begin) all.push_back(step);
  }
  if (all.empty()) return {};
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::ranges::nth_element(all, middle, {},
                           [](const Window& step) { return step.end - step.begin; });
  return *middle;
}

}  // namespace train::page

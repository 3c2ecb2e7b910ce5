#include "page/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "html/document.hpp"
#include "page/timeline.hpp"
#include "report/files.hpp"
#include "report/warnings.hpp"

namespace train::page {
namespace {

using nlohmann::json;

// A run with fewer steps than this gets no smoothed curve of its loss.
constexpr std::size_t fewest_smoothed = 40;
constexpr std::size_t most_intervals = 300;

double rounded(double value) {
  return std::isfinite(value) ? std::stod(fmt::format("{:.6g}", value)) : value;
}

// The indices of the least and the greatest value of [first, end), in ascending order.
std::vector<std::size_t> extremes(const std::vector<double>& values, std::size_t first,
                                  std::size_t end) {
  std::size_t low = end, high = end;
  for (std::size_t at = first; at < end; ++at) {
    if (!std::isfinite(values[at])) continue;
    if (low == end || values[at] < values[low]) low = at;
    if (high == end || values[at] > values[high]) high = at;
  }
  if (low == end) return {};
  if (low == high) return {low};
  return {std::min(low, high), std::max(low, high)};
}

json report_curves(const RunFiles& run) {
  json curves = json::object();
  for (const auto& [name, column] : run.columns) {
    if (name != "step" && run.has(name)) curves[name] = curve_of(run, column);
  }
  if (run.steps >= fewest_smoothed && run.has("loss")) {
    const double window = std::clamp(static_cast<double>(run.steps) / 20, 5.0, 100.0);
    curves["loss_smoothed"] = curve_of(run, smoothed(run.column("loss"), window));
  }
  return curves;
}

// Settings as texts, because JavaScript would round integers above 2^53.
json settings_of(const RunFiles& run) {
  json settings = json::object();
  for (const auto& [name, value] : run.args.items()) {
    if (!value.is_object()) settings[name] = plain(value);
  }
  return settings;
}

json metrics_of(const RunFiles& run) {
  json metrics = json::object();
  for (const auto& [name, value] : run.metrics.items()) {
    if (!value.is_object()) metrics[name] = value.is_array() ? json(plain(value)) : value;
  }
  return metrics;
}

json traps_of(const RunFiles& run) {
  json warnings = json::array();
  for (const RunWarning& trap : find_warnings(run.args, run.metrics)) {
    warnings.push_back({{"evidence", trap.evidence}, {"remedy", trap.remedy}});
  }
  return warnings;
}

// Sets "timeline", or "timeline_note" with the reason why there is none.
void add_timeline(const RunFiles& run, json& report) {
  json timeline;
  std::string note = run.trace_note;
  if (run.trace.is_object()) {
    try {
      timeline = timeline_of(run.trace);
      if (timeline.is_null()) note = "The trace has no whole step.";
    } catch (const json::exception&) {
      note = "The trace has events of another form than atoll's.";
    }
  }
  report["timeline"] = std::move(timeline);
  report["timeline_note"] = note;
}

}  // namespace

json curve_of(const RunFiles& run, const std::vector<double>& column) {
  const auto steps = run.column("step");
  json x = json::array(), y = json::array();
  const auto add = [&](std::size_t at) {
    x.push_back(steps[at]);
    y.push_back(rounded(column[at]));
  };
  if (run.steps <= 2 * most_intervals) {
    for (std::size_t at = 0; at < run.steps; ++at) add(at);
  } else {
    for (std::size_t i = 0; i < most_intervals; ++i) {
      for (const std::size_t at :
           extremes(column, i * run.steps / most_intervals, (i + 1) * run.steps / most_intervals))
        add(at);
    }
  }
  return {{"x", std::move(x)}, {"y", std::move(y)}};
}

std::vector<double> smoothed(const std::vector<double>& values, double window) {
  const double keep = 1 - 1 / std::max(1.0, window);
  double sum = 0, weight = 0;
  std::vector<double> out;
  out.reserve(values.size());
  for (const double value : values) {
    if (std::isfinite(value)) {
      sum = keep * sum + (1 - keep) * value;
      weight = keep * weight + (1 - keep);
    }
    out.push_back(weight > 0 ? sum / weight : std::numeric_limits<double>::quiet_NaN());
  }
  return out;
}

json report_of(const RunFiles& run) {
  const json plan = run.args.value("plan", json::object());
  json report{{"kind", "run"},
              {"title", run.name},
              {"settings", settings_of(run)},
              {"metrics", metrics_of(run)},
              {"plan", plan.is_object() ? plan : json::object()},
              {"warnings", traps_of(run)},
              {"curves", report_curves(run)}};
  add_timeline(run, report);
  return report;
}

std::filesystem::path write_report(const std::filesystem::path& folder) {
  RunFiles run = read_run(folder);
  read_trace(run);
  const auto file = folder / "report.html";
  write_file_atomic(file, html::document(report_of(run)));
  return file;
}

}  // namespace train::page

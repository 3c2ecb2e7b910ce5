#include "page/step_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "page/line_chart.hpp"
#include "page/run_files.hpp"
#include "page/trace_spans.hpp"

namespace train::page {
namespace {

using nlohmann::json;

// From `begin` on, until `end`, `bytes` of memory hold data.
struct Use {
  double begin = 0, end = 0, bytes = 0;
};

// The spans of one rank over the step, in the order of their begins.
struct Step {
  Window window;
  std::vector<Span> compute, gathers, reductions;
};

// The unit that a span's name ends with: "forward layers.0" is of layers.0.
std::string_view unit_of(const Span& span) {
  const std::string_view name = span.name;
  const std::size_t space = name.find(' ');
  return space == name.npos ? std::string_view() : name.substr(space + 1);
}

bool is_pass(const Span& span) {
  return span.name.starts_with("forward ") || span.name.starts_with("backward ");
}

Step step_of(const Trace& trace) {
  Step step{median_step(trace), {}, {}, {}};
  if (trace.ranks.empty()) return step;
  const int rank = trace.ranks.begin()->first;
  for (const Span& span : trace.spans) {
    // Spans before the step too, because some of what they fill is needed in the step.
    if (span.rank != rank || span.begin >= step.window.end) continue;
    if (span.kind == "work" && is_pass(span)) step.compute.push_back(span);
    if (span.kind != "communication") continue;
    (span.name.starts_with("all_gather ") ? step.gathers : step.reductions).push_back(span);
  }
  for (auto* spans : {&step.compute, &step.gathers, &step.reductions}) {
    std::ranges::stable_sort(*spans, {}, &Span::begin);
  }
  return step;
}

using ByUnit = std::map<std::string_view, std::vector<const Span*>>;

// In the order of their begins.
ByUnit by_unit(const std::vector<Span>& spans, std::string_view kind = "") {
  ByUnit units;
  for (const Span& span : spans) {
    if (span.name.starts_with(kind)) units[unit_of(span)].push_back(&span);
  }
  return units;
}

// Gathered parameters are needed until the last forward or backward of the unit before its next
// gather. No forward or backward of the unit comes between the gathers of its buckets.
std::vector<Use> gathered(const Step& step) {
  std::vector<Use> uses;
  const ByUnit all_passes = by_unit(step.compute);
  for (const auto& [unit, gathers] : by_unit(step.gathers)) {
    const auto found = all_passes.find(unit);
    for (std::size_t i = 0; i < gathers.size(); ++i) {
      double last = gathers[i]->end;
      if (found != all_passes.end()) {
        const auto& passes = found->second;
        // Those of the same use lie between this gather and the next one that a pass separates.
        auto pass = std::ranges::find_if(
            passes, [&](const Span* span) { return span->end > gathers[i]->begin; });
        double next = step.window.end;
        for (std::size_t j = i + 1; pass != passes.end() && j < gathers.size(); ++j) {
          if (gathers[j]->begin < (*pass)->end) continue;
          next = gathers[j]->begin;
          break;
        }
        for (; pass != passes.end() && (*pass)->begin < next; ++pass) {
          last = std::max(last, (*pass)->end);
        }
      }
      uses.push_back({gathers[i]->begin, last, gathers[i]->bytes});
    }
  }
  return uses;
}

// A whole gradient is needed from the unit's first backward after the previous reduction, because
// several micro batches may add to it. The reductions of one unit's buckets follow each other.
std::vector<Use> whole_gradients(const Step& step) {
  std::vector<Use> uses;
  const ByUnit all_backwards = by_unit(step.compute, "backward ");
  // An all_reduce after a reduce_scatter of the same unit works on the rank's shard.
  for (const auto& [unit, reductions] : by_unit(step.reductions, "reduce_scatter ")) {
    const auto found = all_backwards.find(unit);
    if (found == all_backwards.end()) continue;
    const auto& backwards = found->second;
    // The first backward that the coming reductions wait for, and the reductions of its buckets.
    std::size_t first = 0, behind = 0;
    for (const Span* const reduction : reductions) {
      std::size_t end = behind;
      while (end < backwards.size() && backwards[end]->begin <= reduction->begin) ++end;
      if (end > behind) first = behind;  // a new backward: the gradient begins anew
      behind = end;
      if (end == 0) continue;
      uses.push_back({backwards[first]->begin, reduction->end, reduction->bytes});
    }
  }
  return uses;
}

std::vector<Use> activations(const Step& step, double bytes) {
  const ByUnit backwards = by_unit(step.compute, "backward ");
  std::vector<Use> uses;
  for (const auto& [unit, forwards] : by_unit(step.compute, "forward ")) {
    const auto found = backwards.find(unit);
    if (found == backwards.end()) continue;
    for (const Span* const forward : forwards) {
      const auto backward = std::ranges::lower_bound(found->second, forward->end, {}, &Span::begin);
      if (backward == found->second.end()) continue;
      uses.push_back(
          {forward->end, (*backward)->end, bytes / static_cast<double>(backwards.size())});
    }
  }
  return uses;
}

// The bytes in use from each time on, within the window.
std::map<double, double> course_of(const std::vector<Use>& uses, const Window& window) {
  std::map<double, double> changes{{window.begin, 0}};
  for (const Use& use : uses) {
    if (use.end <= window.begin || use.begin >= window.end) continue;
    changes[std::max(use.begin, window.begin)] += use.bytes;
    if (use.end < window.end) changes[use.end] -= use.bytes;
  }
  double sum = 0;
  for (auto& [time, bytes] : changes) bytes = sum += bytes;
  return changes;
}

double bytes_in(const json& plan, std::string_view part) {
  const double bytes = number(plan, part);
  return std::isfinite(bytes) ? bytes : 0;
}

// The last forward or backward that has begun.
std::string_view pass_at(const Step& step, double time) {
  std::string_view name = "the begin of the step";
  for (const Span& span : step.compute) {
    if (span.begin <= time) name = span.name;
  }
  return name;
}

// A part of the plan that is needed at times only.
struct Part {
  const char* name;
  int colour;
  std::map<double, double> course;  // bytes from each time on
  double most;                      // the plan's bytes
};

double always_needed(const json& plan) {
  double bytes = 0;
  for (const char* part :
       {"parameters", "resident", "optimizer", "gradients", "inner_shards", "staging"}) {
    bytes += bytes_in(plan, part);
  }
  return bytes;
}

// The times at which the memory changes.
std::set<double> changes(const Window& window, const std::vector<Part>& parts) {
  std::set<double> times{window.end};
  for (const Part& part : parts) {
    for (const auto& [time, bytes] : part.course) times.insert(time);
  }
  return times;
}

double at(const Part& part, double time) {
  return std::min(std::prev(part.course.upper_bound(time))->second, part.most);
}

// Adds a value that holds from this time on.
void add_change(Series& series, double time, double value) {
  if (!series.y.empty()) {
    const double before = series.y.back();
    series.x.push_back(time);
    series.y.push_back(before);
  }
  series.x.push_back(time);
  series.y.push_back(value);
}

}  // namespace

std::string draw_step_memory(const json& trace, const json& plan) {
  const Step step = step_of(spans_of(trace));
  const double always = always_needed(plan);
  if (step.window.name.empty() || !(always > 0)) return {};
  const double most_activations = bytes_in(plan, "activations");
  const std::vector<Part> parts = {
      {"gathered parameters", 5, course_of(gathered(step), step.window),
       bytes_in(plan, "gathered")},
      {"whole gradients", 7, course_of(whole_gradients(step), step.window),
       bytes_in(plan, "whole_gradients")},
      {"activations", 2, course_of(activations(step, most_activations), step.window),
       most_activations}};
  std::vector<Series> series{{.name = "all", .colour = 1}};
  for (const Part& part : parts) series.push_back({.name = part.name, .colour = part.colour});
  constexpr double long_step = 10e6;
  const bool in_seconds = step.window.end - step.window.begin >= long_step;
  double peak = -1, peak_time = 0;
  for (const double time : changes(step.window, parts)) {
    const double x = (time - step.window.begin) / (in_seconds ? 1e6 : 1e3);
    double sum = always;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const double bytes = at(parts[i], time);
      sum += bytes;
      add_change(series[i + 1], x, bytes);
    }
    add_change(series[0], x, sum);
    if (sum > peak) {
      peak = sum;
      peak_time = time;
    }
  }
  for (std::size_t i = parts.size(); i > 0; --i) {
    if (!(parts[i - 1].most > 0)) series.erase(series.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return draw({.title = "Memory over the step",
               .note = fmt::format("peak: {} after {}, in {}", format(peak, Unit::bytes),
                                   format((peak_time - step.window.begin) * 1e-6, Unit::seconds),
                                   pass_at(step, peak_time)),
               .unit = Unit::bytes,
               .from_zero = true,
               .x_name = in_seconds ? "s" : "ms",
               .series = std::move(series)});
}

}  // namespace train::page

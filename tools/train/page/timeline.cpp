#include "page/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "page/text.hpp"
#include "page/trace_spans.hpp"

namespace train::page {
namespace {

using nlohmann::json;

constexpr double width = 1120, left = 128, right = 1112, row_height = 13, row_gap = 3;
constexpr double rank_gap = 10;
constexpr std::size_t most_ranks = 8;
// Narrower spans would not be seen and would make the page large.
constexpr double narrowest = 0.3;
constexpr std::size_t most_spans = 12'000;

struct Kind {
  int colour;
  std::string_view name;
};

constexpr std::array<Kind, 8> kinds{{{1, "forward"},
                                     {5, "backward"},
                                     {3, "optimizer and other work"},
                                     {6, "compute waits"},
                                     {2, "gather"},
                                     {8, "reduce"},
                                     {7, "reduce between replicas"},
                                     {4, "update beside a pass"}}};

const Kind& kind_of(const Span& span, std::string_view row) {
  if (span.kind == "wait") return kinds[3];
  if (row.starts_with("gather")) return kinds[4];
  if (row.starts_with("reduce")) return kinds[5];
  if (row.starts_with("outer")) return kinds[6];
  if (row.starts_with("update")) return kinds[7];
  if (span.name.starts_with("forward")) return kinds[0];
  if (span.name.starts_with("backward")) return kinds[1];
  return kinds[2];
}

// Where each row lies: rank by rank, its rows in the order of the trace.
std::map<std::pair<int, int>, double> layout(const Trace& trace, std::string& svg, double& height) {
  std::map<std::pair<int, int>, double> tops;
  double y = 22;
  std::size_t shown = 0;
  for (const auto& [rank, name] : trace.ranks) {
    if (shown++ == most_ranks) break;
    svg += fmt::format(R"(<text class="label" x="0" y="{:.0f}">rank {}</text>)", y + 10, rank);
    for (const auto& [key, row] : trace.rows) {
      if (key.first != rank || row == "step") continue;
      tops[key] = y;
      svg += fmt::format(R"(<text class="tick end" x="{}" y="{:.1f}">{}</text>)"
                         R"(<rect class="lane" x="{}" y="{:.1f}" width="{}" height="{}"/>)",
                         left - 8, y + 10, escape(row), left, y, right - left, row_height);
      y += row_height + row_gap;
    }
    y += rank_gap;
  }
  height = y;
  return tops;
}

std::string time_axis(const Window& step, double height) {
  std::string svg;
  const double seconds = (step.end - step.begin) / 1e6;
  for (const double at : ticks(0, seconds, 8)) {
    const double x = left + at / seconds * (right - left);
    svg += fmt::format(R"(<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="18" y2="{1:.0f}"/>)"
                       R"(<text class="tick mid" x="{0:.1f}" y="12">{2}</text>)",
                       x, height - rank_gap, format(at, Unit::seconds));
  }
  return svg;
}

std::string draw_span(const Span& span, const Kind& kind, double y, const Window& step) {
  const double scale = (right - left) / (step.end - step.begin);
  const double x0 = left + (std::max(span.begin, step.begin) - step.begin) * scale;
  const double x1 = left + (std::min(span.end, step.end) - step.begin) * scale;
  if (x1 - x0 < narrowest) return {};
  return fmt::format(
      R"(<rect class="c{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}"><title>{}: {})"
      R"(</title></rect>)",
      kind.colour, x0, y, std::max(0.4, x1 - x0), row_height, escape(span.name),
      format((span.end - span.begin) / 1e6, Unit::seconds));
}

std::string legend(const std::array<bool, kinds.size()>& used) {
  std::string html = R"(<div class="legend">)";
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (!used[i]) continue;
    html += fmt::format(R"(<span><i class="key block c{}"></i>{}</span>)", kinds[i].colour,
                        kinds[i].name);
  }
  return html + "</div>";
}

}  // namespace

Timeline draw_timeline(const json& document) {
  const Trace trace = spans_of(document);
  const Window step = median_step(trace);
  if (step.name.empty()) return {"The trace has no whole step.", ""};
  std::string svg;
  double height = 0;
  const auto tops = layout(trace, svg, height);
  svg += time_axis(step, height);
  std::array<bool, kinds.size()> used{};
  std::size_t drawn = 0;
  for (const Span& span : trace.spans) {
    const auto top = tops.find({span.rank, span.row});
    if (top == tops.end() || span.end <= step.begin || span.begin >= step.end) continue;
    const Kind& kind = kind_of(span, trace.rows.at(top->first));
    const std::string rect = draw_span(span, kind, top->second, step);
    if (rect.empty() || ++drawn > most_spans) continue;
    used[static_cast<std::size_t>(&kind - kinds.data())] = true;
    svg += rect;
  }
  std::string caption = fmt::format("{} took {}; the median of the traced steps.", step.name,
                                    format((step.end - step.begin) / 1e6, Unit::seconds));
  if (trace.ranks.size() > most_ranks) {
    caption += fmt::format(" Ranks 0 to {} of {}.", most_ranks - 1, trace.ranks.size());
  }
  return {
      caption + " Spans too narrow to see are left out; the trace file has them all.",
      fmt::format(
          R"({})"
          R"(<svg class="timeline" viewBox="0 0 {} {:.0f}" role="img" aria-label="timeline of one step">{})"
          R"(</svg>)",
          legend(used), width, height, svg)};
}

}  // namespace train::page

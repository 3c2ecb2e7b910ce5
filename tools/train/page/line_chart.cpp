#include "page/line_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace train::page {
namespace {

// The drawing area in units of the view box; the picture grows with the page.
constexpr double width = 560, height = 220;
constexpr double left = 56, right = 548, top = 10, bottom = 192;
constexpr std::size_t most_intervals = 300;
constexpr double far_apart = 20;  // quotient of values from which a logarithmic axis helps

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

struct Scale {
  Range x, y;  // y holds logarithms if the axis is logarithmic
  bool logarithmic = false;
  double px(double value) const {
    return left + (value - x.low) / (x.high - x.low) * (right - left);
  }
  double py(double value) const {
    if (logarithmic) value = std::log10(value);
    return bottom - (value - y.low) / (y.high - y.low) * (bottom - top);
  }
};

// Keeps the least and the greatest value of each interval, so that spikes stay visible.
Series reduced(const Series& series) {
  if (series.x.size() <= 2 * most_intervals) return series;
  Series kept = series;
  kept.x.clear();
  kept.y.clear();
  const std::size_t count = series.x.size();
  for (std::size_t i = 0; i < most_intervals; ++i) {
    const std::size_t first = i * count / most_intervals, end = (i + 1) * count / most_intervals;
    std::size_t low = end, high = end;
    for (std::size_t at = first; at < end; ++at) {
      if (!std::isfinite(series.y[at])) continue;
      if (low == end || series.y[at] < series.y[low]) low = at;
      if (high == end || series.y[at] > series.y[high]) high = at;
    }
    if (low == end) continue;
    for (const std::size_t at : {std::min(low, high), std::max(low, high)}) {
      kept.x.push_back(series.x[at]);
      kept.y.push_back(series.y[at]);
      if (low == high) break;
    }
  }
  return kept;
}

Scale scale_of(const LineChart& chart, const std::vector<Series>& all) {
  Scale scale;
  for (const Series& series : all) {
    for (const double value : series.x) scale.x.add(value);
    for (const double value : series.y) scale.y.add(value);
  }
  if (scale.y.empty()) return scale;
  if (chart.logarithmic && scale.y.low > 0 && scale.y.high >= far_apart * scale.y.low) {
    scale.logarithmic = true;
    scale.y = {std::log10(scale.y.low), std::log10(scale.y.high)};
  }
  if (chart.from_zero) scale.y.add(0);
  if (scale.x.low == scale.x.high) scale.x = {scale.x.low - 1, scale.x.high + 1};
  const double span = scale.y.high - scale.y.low;
  // Constant values may differ by rounding.
  const bool constant = span <= 1e-9 * std::abs(scale.y.high);
  const double beside = scale.y.high == 0 ? 1 : 0.1 * std::abs(scale.y.high);
  const double room = constant ? beside : 0.06 * span;
  scale.y.high += room;
  if (!chart.from_zero || scale.y.low < 0) scale.y.low -= room;
  return scale;
}

// Returns the values to mark on the y axis. A logarithmic axis has powers of ten, and three times
// these if it is short.
std::vector<double> y_ticks(const Scale& scale) {
  if (!scale.logarithmic) return ticks(scale.y.low, scale.y.high, 4);
  std::vector<double> all;
  const bool is_short = scale.y.high - scale.y.low < 3;
  for (double power = std::floor(scale.y.low); power <= scale.y.high; ++power) {
    for (const double times : {1.0, 3.0}) {
      const double at = times * std::pow(10, power), place = std::log10(at);
      if ((times > 1 && !is_short) || place < scale.y.low || place > scale.y.high) continue;
      all.push_back(at);
    }
  }
  return all;
}

std::string axes(const LineChart& chart, const Scale& scale) {
  std::string svg;
  for (const double at : y_ticks(scale)) {
    const double y = scale.py(at);
    svg += fmt::format(R"(<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>)", left,
                       right, y, y);
    svg += fmt::format(R"(<text class="tick end" x="{}" y="{:.1f}">{}</text>)", left - 6, y + 3.5,
                       format(std::abs(at) < 1e-15 ? 0 : at, chart.unit));
  }
  svg += fmt::format(R"(<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>)", left, right, bottom,
                     bottom);
  for (const double at : ticks(scale.x.low, scale.x.high, 6)) {
    if (at != std::floor(at)) continue;  // steps and hosts are whole numbers
    svg += fmt::format(R"(<text class="tick mid" x="{:.1f}" y="{}">{}</text>)", scale.px(at),
                       bottom + 15, format(at, at >= 1e5 ? Unit::count : Unit::number));
  }
  return svg + fmt::format(R"(<text class="tick end" x="{}" y="{}">{}</text>)", right, bottom + 26,
                           escape(chart.x_name));
}

std::string path(const Series& series, const Scale& scale) {
  std::string d;
  bool open = false;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    // A series with few values, such as evaluations, connects them over the gaps.
    if (!std::isfinite(series.y[i])) {
      open = open && series.look == Series::Look::dots;
      continue;
    }
    d += fmt::format("{}{:.1f} {:.1f}", open ? "L" : "M", scale.px(series.x[i]),
                     scale.py(series.y[i]));
    open = true;
  }
  const char* look = series.look == Series::Look::faint ? " faint" : "";
  std::string svg = fmt::format(R"(<path class="line c{}{}" d="{}"/>)", series.colour, look, d);
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!std::isfinite(series.y[i])) continue;
    const bool alone = series.x.size() == 1;
    if (series.look != Series::Look::dots && !alone) break;
    svg += fmt::format(R"(<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="3.5"/>)",
                       series.colour, scale.px(series.x[i]), scale.py(series.y[i]));
  }
  return svg;
}

std::string legend(const LineChart& chart) {
  if (chart.series.size() < 2 && chart.marks.empty()) return {};
  std::string html = R"(<div class="legend">)";
  for (const Series& series : chart.series) {
    html += fmt::format(R"(<span><i class="key c{}{}"></i>{}</span>)", series.colour,
                        series.look == Series::Look::faint ? " faint" : "", escape(series.name));
  }
  if (!chart.marks.empty()) {
    html += fmt::format(R"(<span><b class="mark">&#9650;</b> {}</span>)", escape(chart.marks_name));
  }
  return html + "</div>";
}

std::string numbers(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    if (!text.empty()) text += ',';
    text += std::isfinite(value) ? fmt::format("{:.5g}", value) : "null";
  }
  return text;
}

// The values at the pointer. `<` cannot end the element, because escape() has replaced it.
std::string data(const LineChart& chart, const std::vector<Series>& all, const Scale& scale) {
  std::string text =
      fmt::format(R"({{"unit":"{}","x_name":"{}","x0":{},"x1":{},"left":{},)"
                  R"("right":{},"series":[)",
                  name(chart.unit), escape(chart.x_name), scale.x.low, scale.x.high, left, right);
  bool first = true;
  for (const Series& series : all) {
    text += fmt::format(R"({}{{"name":"{}","colour":{},"x":[{}],"y":[{}]}})", first ? "" : ",",
                        escape(series.name), series.colour, numbers(series.x), numbers(series.y));
    first = false;
  }
  std::replace(text.begin(), text.end(), '\\', '/');
  return text + "]}";
}

}  // namespace

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

std::string draw(const LineChart& chart) {
  std::vector<Series> all;
  for (const Series& series : chart.series) all.push_back(reduced(series));
  const Scale scale = scale_of(chart, all);
  if (scale.y.empty()) return {};
  std::string svg = axes(chart, scale);
  for (const Series& series : all) svg += path(series, scale);
  for (const double at : chart.marks) {
    svg +=
        fmt::format(R"(<path class="mark" d="M{0:.1f} {1}l4 7h-8z"/>)", scale.px(at), bottom - 8);
  }
  std::string note = chart.note;
  if (scale.logarithmic) note += note.empty() ? "logarithmic" : ", logarithmic";
  if (!note.empty()) note = fmt::format(R"(<p class="note">{}</p>)", escape(note));
  return fmt::format(
      R"(<figure class="card chart"><figcaption>{0}</figcaption>{1}{2}<div class="plot">
<svg viewBox="0 0 {3} {4}" role="img" aria-label="{0}">{5}<line class="cursor" y1="{6}" y2="{7}"/></svg>
<div class="tip"></div></div><script type="application/json">{8}</script></figure>
)",
      escape(chart.title), note, legend(chart), width, height, svg, top, bottom,
      data(chart, all, scale));
}

}  // namespace train::page

#include "page/curves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace train::page {
namespace {

using nlohmann::json;

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

}  // namespace train::page

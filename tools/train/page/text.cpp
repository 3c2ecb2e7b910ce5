#include "page/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace train::page {
namespace {

std::string scaled(double value, std::string_view suffix) {
  constexpr std::array<std::pair<double, std::string_view>, 5> scales{
      {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}}};
  for (const auto& [scale, letter] : scales) {
    if (std::abs(value) < scale && scale > 1) continue;
    const std::string unit = fmt::format("{}{}", letter, suffix);
    return fmt::format("{:.3g}{}{}", value / scale, unit.empty() ? "" : " ", unit);
  }
  return {};
}

std::string time(double seconds) {
  const double size = std::abs(seconds);
  if (size >= 600) return fmt::format("{:.3g} min", seconds / 60);
  if (size >= 1 || size == 0) return fmt::format("{:.3g} s", seconds);
  if (size >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char letter : text) {
    switch (letter) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += letter;
    }
  }
  return out;
}

std::string_view name(Unit unit) {
  switch (unit) {
    case Unit::number:
      return "number";
    case Unit::count:
      return "count";
    case Unit::share:
      return "share";
    case Unit::seconds:
      return "seconds";
    case Unit::bytes:
      return "bytes";
    case Unit::bytes_per_s:
      return "bytes_per_s";
    case Unit::flops:
      return "flops";
  }
  return "";
}

std::string format(double value, Unit unit) {
  if (!std::isfinite(value)) return "-";
  switch (unit) {
    case Unit::number:
      return fmt::format("{:.4g}", value);
    case Unit::count:
      return scaled(value, "");
    case Unit::share:
      return fmt::format("{:.3g} %", 100 * value);
    case Unit::seconds:
      return time(value);
    case Unit::bytes:
      return scaled(value, "B");
    case Unit::bytes_per_s:
      return scaled(value, "B/s");
    case Unit::flops:
      return scaled(value, "FLOP/s");
  }
  return "-";
}

std::vector<double> ticks(double low, double high, int count) {
  const double rough = (high - low) / count;
  // A span within rounding of the numbers themselves has no ticks that differ.
  const double least = 1e-12 * std::max(std::abs(low), std::abs(high));
  if (!(rough > least) || !std::isfinite(rough)) return {low};
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double part = rough / power;
  const double step = power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
  std::vector<double> all;
  // The half step keeps rounding from losing the last tick.
  for (double at = std::ceil(low / step - 1e-9); at * step <= high + step * 1e-6; ++at) {
    all.push_back(at * step + 0.0);  // -0 becomes 0
  }
  return all;
}

}  // namespace train::page

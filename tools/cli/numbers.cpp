#include "cli/cli.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

namespace cli {
namespace {

constexpr std::string_view units = "bkmgt";  // each unit is 1024 times the one before it
constexpr double most = 0x1p63;

// Returns the power of 1024 of a unit; -1 for another text.
int power_of(std::string_view unit) {
  if (unit.empty()) return 0;
  std::string small;
  for (const char letter : unit) {
    small.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(letter))));
  }
  const std::size_t power = units.find(small.front());
  const std::string_view rest = std::string_view(small).substr(1);
  const bool is_known = rest.empty() || (power > 0 && (rest == "b" || rest == "ib"));
  return power == units.npos || !is_known ? -1 : static_cast<int>(power);
}

}  // namespace

std::string as_bytes(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [behind, error] = std::from_chars(text.data(), end, number);
  std::string_view unit(behind, static_cast<std::size_t>(end - behind));
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  const int power = power_of(unit);
  const double bytes = std::ldexp(number, 10 * power);
  if (error != std::errc() || power < 0 || !(number >= 0) || !(bytes < most)) {
    throw CLI::ValidationError(
        fmt::format("{} is no number of bytes: write for example 16G, 1.5G or 512M", text));
  }
  return std::to_string(static_cast<std::uint64_t>(bytes));
}

Check number(std::function<bool(double)> fits, std::string must) {
  return [fits = std::move(fits), must = std::move(must)](const std::string& text) {
    double value = 0;
    const bool is_fine =
        CLI::detail::lexical_cast(text, value) && std::isfinite(value) && fits(value);
    return is_fine ? std::string() : fmt::format("{} must be {}", text, must);
  };
}

Check at_least(double least) {
  return number([least](double value) { return value >= least; },
                fmt::format("at least {}", least));
}

}  // namespace cli

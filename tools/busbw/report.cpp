#include "report.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>

namespace busbw {
namespace {

// nccl-tests accepts a run that reaches this share of NCCL_TESTS_MIN_BW.
constexpr double bandwidth_margin = 0.9;

double percentile(const std::vector<double>& sorted, int percent) {
  const auto n = static_cast<int>(sorted.size());
  const int index = std::min(n - 1, (n * percent + 99) / 100 - 1);
  return sorted[static_cast<std::size_t>(std::max(0, index))];
}

std::string number(double value) { return short_number(value, 7); }

// Formats texts as columns of seven characters.
template <class... Text>
std::string sevens(const Text&... texts) {
  return (fmt::format("  {:>7}", texts) + ...);
}

std::string half_text(const Half& half, const Layout& layout) {
  const std::string wrong =
      half.wrong ? fmt::format("{:6g}", static_cast<double>(*half.wrong)) : "   N/A";
  std::string text =
      fmt::format("  {:>7}  {:>6}  {:>6}  {}", number(layout.cpu_time ? half.cpu_us : half.time_us),
                  short_number(half.algbw, 6), short_number(half.busbw, 6), wrong);
  if (layout.latency && half.latency) {
    const LatencySummary& times = *half.latency;
    text +=
        sevens(number(times.min), number(times.max), number(times.p99), number(times.cv_percent()));
  }
  return text;
}

std::string column_line(std::string_view size, std::string_view count, std::string_view type,
                        std::string_view op, std::string_view root) {
  return fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", size, count, type, op, root);
}

std::string title_half(std::string_view time, std::string_view bandwidth_a,
                       std::string_view bandwidth_b, std::string_view wrong) {
  return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", time, bandwidth_a, bandwidth_b, wrong);
}

std::string limit_half(const Half& half, const Layout& layout) {
  const auto percent = half.percent();
  std::string text = sevens(percent ? number(*percent) : "N/A",
                            percent && *percent > 0 ? number(half.busbw * 100 / *percent) : "N/A");
  if (layout.latency)
    text += half.latency ? sevens(number(half.latency->p50), number(half.latency->p99))
                         : sevens("N/A", "N/A");
  return text;
}

bool is_of_ring(std::span<const Row> rows) {
  return std::ranges::any_of(rows, [](const Row& row) {
    return row.out.limit.by == by_ring || row.in.limit.by == by_ring;
  });
}

}  // namespace

LatencySummary summarize(std::vector<double> times) {
  std::ranges::sort(times);
  const auto n = static_cast<double>(times.size());
  LatencySummary summary{.min = times.front(), .max = times.back()};
  summary.mean = std::accumulate(times.begin(), times.end(), 0.0) / n;
  summary.p50 = percentile(times, 50);
  summary.p95 = percentile(times, 95);
  summary.p99 = percentile(times, 99);
  double variance = 0;
  for (const double time : times) variance += (time - summary.mean) * (time - summary.mean) / n;
  summary.deviation = std::sqrt(variance);
  return summary;
}

std::optional<double> Half::percent() const noexcept {
  if (!limit.seconds || time_us <= 0) return std::nullopt;
  return *limit.seconds * 1e6 / time_us * 100;
}

std::string short_number(double value, int width) {
  for (const int digits : {2, 1, 0}) {
    std::string text = fmt::format("{:.{}f}", value, digits);
    if (static_cast<int>(text.size()) <= width) return text;
  }
  return fmt::format("{:.{}e}", value, width >= 7 ? 1 : 0);
}

std::string human_bytes(std::uint64_t bytes) {
  static constexpr std::array<std::string_view, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:g} {}", value, units[unit]);
}

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", local);
}

std::string header_lines(const Layout& layout) {
  const std::string_view time = layout.cpu_time ? "cputime" : "time";
  const std::string blank = column_line("", "", "", "", "");
  std::string titles = column_line("size", "count", "type", "redop", "root");
  std::string units = column_line("(B)", "(elements)", "", "", "");
  for ([[maybe_unused]] const Place place : both_places) {
    titles += title_half(time, "algbw", "busbw", "#wrong");
    units += title_half("(us)", "(GB/s)", "(GB/s)", "");
    if (!layout.latency) continue;
    titles += sevens("i_min", "i_max", "i_p99", "i_cv%");
    units += sevens("(us)", "(us)", "(us)", "(%)");
  }
  titles += ' ';
  units += ' ';
  if (layout.timestamps) {
    titles += fmt::format("{:>19}", "timestamp");
    units += fmt::format("{:>19}", "(local)");
  }
  const std::string_view halves =
      layout.latency
          ? "              out-of-place (+ per-iteration)                                in-place "
            "(+ per-iteration)"
          : "           out-of-place                       in-place          ";
  return fmt::format("#\n{}{}\n{}\n{}\n", blank, halves, titles, units);
}

std::string row_line(const Row& row, const Layout& layout) {
  return fmt::format("{:12}  {:12}  {:>8}  {:>6}  {:>6}{}{}{}\n", row.bytes, row.count,
                     column_name(row.dtype), name(row.op), row.root, half_text(row.out, layout),
                     half_text(row.in, layout),
                     layout.timestamps ? fmt::format("{:>21}", row.timestamp) : "");
}

bool Verdict::is_bandwidth_fine() const noexcept {
  return !wanted_busbw || average_busbw >= bandwidth_margin * *wanted_busbw;
}

Verdict judge(std::span<const Row> rows, std::optional<double> wanted_busbw) {
  Verdict verdict{.wanted_busbw = wanted_busbw};
  for (const Row& row : rows) {
    for (const Place place : both_places) {
      const Half& half = row.half(place);
      verdict.average_busbw += half.busbw / (2 * static_cast<double>(rows.size()));
      if (half.wrong.value_or(0) > 0) ++verdict.wrong_rows;
    }
  }
  return verdict;
}

std::string footer_lines(const Verdict& verdict) {
  std::string_view bandwidth;
  std::string required;
  if (verdict.wanted_busbw) bandwidth = verdict.is_bandwidth_fine() ? "OK" : "FAILED";
  if (!verdict.is_bandwidth_fine())
    required = fmt::format("# below {:.6g} GB/s, which is {} x NCCL_TESTS_MIN_BW ({:.6g})\n#\n",
                           bandwidth_margin * *verdict.wanted_busbw, bandwidth_margin,
                           *verdict.wanted_busbw);
  return fmt::format("# {:<20} : {} {}\n# {:<20} : {:.6g} {}\n#\n", "Out of bounds values",
                     verdict.wrong_rows, verdict.wrong_rows == 0 ? "OK" : "FAILED",
                     "Avg bus bandwidth", verdict.average_busbw, bandwidth) +
         required;
}

std::string limit_lines(std::span<const Row> rows, const Layout& layout) {
  const auto has_limit = [](const Row& row) { return row.out.percent() || row.in.percent(); };
  if (rows.empty()) return "";
  if (!layout.latency && std::ranges::none_of(rows, has_limit))
    return fmt::format("# {}: no limit: {}\n#\n", name(rows.front().collective),
                       rows.front().out.limit.by);
  std::string titles =
      fmt::format("# {:>10}  {:>8}  {:>6}  {:>6}", "size", "type", "redop", "root");
  std::string units = fmt::format("# {:>10}  {:>8}  {:>6}  {:>6}", "(B)", "", "", "");
  for (const Place place : both_places) {
    titles += sevens(fmt::format("%lim {}", name(place)), "limit");
    units += sevens("(%)", "(GB/s)");
    if (!layout.latency) continue;
    titles += sevens("p50", "p99");
    units += sevens("(us)", "(us)");
  }
  std::string text = fmt::format(
      "# {}: % of limit, and the limit as bus bandwidth{}\n{}  by\n{}\n",
      name(rows.front().collective),
      is_of_ring(rows) ? "; the limit is that of a ring: NVLS, trees and two levels may exceed it"
                       : "",
      titles, units);
  for (const Row& row : rows) {
    text +=
        fmt::format("# {:>10}  {:>8}  {:>6}  {:>6}{}{}  {}\n", row.bytes, column_name(row.dtype),
                    name(row.op), row.root, limit_half(row.out, layout), limit_half(row.in, layout),
                    row.out.limit.by.empty() ? row.in.limit.by : row.out.limit.by);
  }
  return text + "#\n";
}

Expectation expect(std::span<const Row> rows, double share) {
  Expectation result;
  for (const Row& row : rows) {
    for (const Place place : both_places) {
      const auto percent = row.half(place).percent();
      if (!percent) continue;
      ++result.judged;
      if (*percent >= share * 100) continue;
      ++result.below;
      result.text += fmt::format("# below {:.4g} % of limit: {} {} {} {} B, {}: {:.1f} %\n",
                                 share * 100, name(row.collective), column_name(row.dtype),
                                 name(row.op), row.bytes, name(place), *percent);
    }
  }
  result.text += fmt::format("# {:<20} : {} of {} below {:.4g} % {}\n",
                             is_of_ring(rows) ? "Share of a ring" : "Share of limit", result.below,
                             result.judged, share * 100, result.below == 0 ? "OK" : "FAILED");
  return result;
}

std::string port_lines(std::span<const atoll::Finding> findings) {
  std::string text;
  for (const atoll::Finding& finding : findings)
    text += fmt::format("# {}: {}\n", name(finding.severity), to_line(finding));
  return text;
}

}  // namespace busbw

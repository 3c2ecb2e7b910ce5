#include "tune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "atoll/error.hpp"

namespace busbw {
namespace {

constexpr std::size_t most_text = std::size_t{64} << 20U;
constexpr std::size_t most_points = 1 << 20;
constexpr std::size_t most_name = 256;

[[noreturn]] void refuse(std::string_view source, std::string_view why) {
  throw atoll::Error(atoll::ErrorCode::bad_data, fmt::format("{}: {}", source, why));
}

std::string text_member(const nlohmann::json& row, const char* member, std::string_view source) {
  const auto found = row.find(member);
  if (found == row.end() || !found->is_string())
    refuse(source, fmt::format("a row lacks the text \"{}\"", member));
  const auto& text = found->get_ref<const std::string&>();
  // A name becomes one word in a line of the tuning file.
  if (text.size() > most_name || text.find_first_of(" \t\r\n#") != std::string::npos)
    refuse(source,
           fmt::format("the member \"{}\" of a row must be a short name without spaces", member));
  return text;
}

std::uint64_t count_member(const nlohmann::json& row, const char* member, std::string_view source) {
  const auto found = row.find(member);
  if (found == row.end() || !found->is_number_unsigned())
    refuse(source, fmt::format("a row lacks the number \"{}\"", member));
  return found->get<std::uint64_t>();
}

double time_member(const nlohmann::json& row, std::string_view source) {
  const auto found = row.find("time_us");
  const double time = found != row.end() && found->is_number() ? found->get<double>() : 0;
  if (!std::isfinite(time) || time <= 0) refuse(source, "a row lacks a \"time_us\" above 0");
  return time;
}

CurvePoint read_point(const nlohmann::json& row, std::string_view source) {
  if (!row.is_object()) refuse(source, "a row is not an object");
  const auto collective = collective_from_name(text_member(row, "collective", source));
  if (!collective) refuse(source, "a row names an unknown collective");
  return {.collective = *collective,
          .algorithm = text_member(row, "algorithm", source),
          .setting =
              fmt::format("{} {} {} {} {}", text_member(row, "dtype", source),
                          text_member(row, "op", source), text_member(row, "place", source),
                          count_member(row, "ranks", source), count_member(row, "hosts", source)),
          .bytes = count_member(row, "bytes", source),
          .time_us = time_member(row, source)};
}

// Maps an algorithm to its best time in each setting. A setting is a combination of element type,
// reduction, in-place or not, ranks and hosts.
using Contest = std::map<std::string, std::map<std::string, double>>;

// Returns the settings in which every algorithm of the contest was timed.
std::set<std::string> common_settings(const Contest& contest) {
  std::set<std::string> common;
  for (const auto& [setting, time] : contest.begin()->second) {
    const bool everywhere = std::ranges::all_of(
        contest, [&name = setting](const auto& one) { return one.second.contains(name); });
    if (everywhere) common.insert(setting);
  }
  return common;
}

// Whether measurements in these settings suffice to choose the algorithm for all element types.
// Algorithms that round 16-bit sums at each step need a setting with a 16-bit type.
bool is_safe(std::string_view algorithm, Collective collective,
             const std::set<std::string>& settings) {
  const bool rounds = algorithm == "ring" || algorithm == "doubling" || algorithm == "halving";
  if (!rounds || !has_reduction(collective)) return true;
  return std::ranges::any_of(settings, [](const std::string& setting) {
    return setting.starts_with("f16 ") || setting.starts_with("bf16 ");
  });
}

// Returns the fastest algorithm; "" when nothing can be compared.
std::string winner(Collective collective, const Contest& contest) {
  const std::set<std::string> common = common_settings(contest);
  std::string best;
  double best_score = 0;
  for (const auto& [algorithm, times] : contest) {
    if (!is_safe(algorithm, collective, common)) continue;
    double score = 0;  // logarithm of the product of times
    for (const std::string& setting : common) score += std::log(times.at(setting));
    if (!common.empty() && (best.empty() || score < best_score)) {
      best = algorithm;
      best_score = score;
    }
  }
  return best;
}

std::string lines_of(Collective collective, const std::map<std::uint64_t, Contest>& sizes) {
  const bool is_contested =
      std::ranges::any_of(sizes, [](const auto& one) { return one.second.size() > 1; });
  std::string text, last;
  for (const auto& [bytes, contest] : sizes) {
    if (is_contested && contest.size() < 2) continue;
    const std::string best = winner(collective, contest);
    if (best.empty() || best == last) continue;
    text += fmt::format("{} {} {}\n", name(collective), last.empty() ? 0 : bytes, best);
    last = best;
  }
  return text;
}

}  // namespace

std::vector<CurvePoint> parse_curve(std::string_view text, std::string_view source) {
  if (text.size() > most_text) refuse(source, "the file is too large for a curve");
  nlohmann::json curve;
  try {
    curve = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    refuse(source, fmt::format("byte {}: not JSON", error.byte));
  } catch (const nlohmann::json::exception&) {
    refuse(source, "a number is out of range");
  }
  const auto schema = curve.is_object() ? curve.find("schema") : curve.end();
  if (!curve.is_object() || schema == curve.end() || *schema != "atoll-curve-1")
    refuse(source, "not a curve that atoll-busbw --save wrote");
  const auto rows = curve.find("rows");
  if (rows == curve.end() || !rows->is_array() || rows->size() > most_points)
    refuse(source, "the array \"rows\" is missing or too long");
  std::vector<CurvePoint> points;
  for (const nlohmann::json& row : *rows) {
    CurvePoint point = read_point(row, source);
    const bool has_choice =
        point.collective != Collective::send_recv && count_member(row, "hosts", source) > 1;
    if (has_choice && !point.algorithm.empty()) points.push_back(std::move(point));
  }
  return points;
}

std::string tuning_text(std::span<const CurvePoint> points) {
  if (points.empty())
    refuse("--tune",
           "the curves name no algorithm between hosts: save them on several hosts with "
           "--algorithm NAME");
  std::map<Collective, std::map<std::uint64_t, Contest>> contests;
  for (const CurvePoint& point : points) {
    auto& times = contests[point.collective][point.bytes][point.algorithm];
    const auto [at, is_new] = times.try_emplace(point.setting, point.time_us);
    if (!is_new) at->second = std::min(at->second, point.time_us);
  }
  std::string text = "# COLLECTIVE MIN_BYTES ALGORITHM, for ATOLL_TUNING; by atoll-busbw --tune\n";
  for (const auto& [collective, sizes] : contests) text += lines_of(collective, sizes);
  return text;
}

std::string tune(std::span<const std::filesystem::path> curves) {
  std::vector<CurvePoint> points;
  for (const std::filesystem::path& path : curves) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file.is_open() || file.bad())
      throw atoll::Error(atoll::ErrorCode::io,
                         fmt::format("{}: {}", path.string(), std::strerror(errno)));
    const auto more = parse_curve(text, path.string());
    points.insert(points.end(), more.begin(), more.end());
  }
  return tuning_text(points);
}

}  // namespace busbw

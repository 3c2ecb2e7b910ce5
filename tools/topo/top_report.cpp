#include "top_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

namespace topo {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_rows = 40;    // maximum number of table rows if there is no terminal
constexpr std::size_t most_waited = 5;   // maximum number of ranks that the head names
constexpr double shortest_wait = 0.005;  // seconds; shorter waits happen in every job

std::string_view state_name(atoll::ObservedRank::State state) {
  constexpr std::array<std::string_view, 5> names = {"answers", "gives a malformed answer",
                                                     "does not answer", "has left the job",
                                                     "has not joined yet"};
  return names[static_cast<std::size_t>(state)];
}

std::string_view state_key(atoll::ObservedRank::State state) {
  constexpr std::array<std::string_view, 5> keys = {"answers", "unreadable", "silent", "departed",
                                                    "absent"};
  return keys[static_cast<std::size_t>(state)];
}

// Returns the bytes per second of a rank since the last table, by the clock of the rank.
std::optional<double> rate(const View& view, std::size_t rank) {
  if (rank >= view.previous.size()) return std::nullopt;
  const atoll::ObservedRank &now = view.ranks[rank], &then = view.previous[rank];
  if (then.monotonic_ns == 0 || now.monotonic_ns <= then.monotonic_ns || now.bytes < then.bytes)
    return std::nullopt;
  return static_cast<double>(now.bytes - then.bytes) * 1e9 /
         static_cast<double>(now.monotonic_ns - then.monotonic_ns);
}

// Returns "0-3, 7" for a few runs of ranks, and "0-3, 7, ... (12)" for many, where 12 is the number
// of ranks.
std::string ranks_text(const std::vector<std::size_t>& ranks) {
  constexpr int most_runs = 3;
  std::string text;
  int runs = 0;
  for (std::size_t i = 0; i < ranks.size(); ++runs) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (runs == most_runs) return fmt::format("{}, ... ({})", text, ranks.size());
    text += runs == 0 ? "" : ", ";
    text +=
        end == i + 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text;
}

// A row of the table: ranks in the same state and in the same operation.
struct Row {
  std::vector<std::size_t> ranks;
  bool is_waited_for = false;
};

std::vector<Row> rows_of(const View& view, const std::set<int>& late) {
  // The order of the keys is the order of the rows: first the ranks for which others wait, then
  // ranks without an answer, then the others, those with the lowest step first.
  using Key = std::tuple<bool, bool, atoll::ObservedRank::State, std::int64_t, std::string,
                         std::uint64_t, std::string, atoll::FlightState>;
  std::map<Key, Row> rows;
  for (std::size_t i = 0; i < view.ranks.size(); ++i) {
    const atoll::ObservedRank& rank = view.ranks[i];
    const auto operation = rank.operation.value_or(atoll::ObservedOperation{});
    const bool is_late = late.contains(static_cast<int>(i));
    Row& row =
        rows[{!is_late, rank.state == atoll::ObservedRank::State::answers, rank.state, rank.step,
              operation.communicator, operation.sequence, operation.text, operation.state}];
    row.ranks.push_back(i);
    row.is_waited_for = is_late;
  }
  std::vector<Row> result;
  for (auto& [key, row] : rows) result.push_back(std::move(row));
  return result;
}

std::string line_of(const View& view, const Row& row) {
  const atoll::ObservedRank& first = view.ranks[row.ranks.front()];
  std::set<std::string> hosts;
  double seconds = 0, bytes = 0;
  bool has_rate = false;
  for (const std::size_t i : row.ranks) {
    const atoll::ObservedRank& rank = view.ranks[i];
    hosts.insert(rank.host);
    if (rank.operation) seconds = std::max(seconds, rank.operation->seconds);
    const auto own = rate(view, i);
    has_rate = has_rate || own;
    bytes += own.value_or(0);
  }
  const std::string host =
      hosts.size() == 1 ? *hosts.begin() : fmt::format("{} hosts", hosts.size());
  std::string line = fmt::format("{}{:<16} {:<14.14} {:>6}  ", row.is_waited_for ? '*' : ' ',
                                 ranks_text(row.ranks), host.empty() ? "-" : host,
                                 first.step < 0 ? "-" : std::to_string(first.step));
  const std::string speed =
      has_rate ? fmt::format("{:.3f}", bytes * 1e-9 / static_cast<double>(row.ranks.size())) : "-";
  if (first.state != atoll::ObservedRank::State::answers)
    return line + fmt::format("{}\n", state_name(first.state));
  if (!first.operation) return line + "no operation yet\n";
  const atoll::ObservedOperation& operation = *first.operation;
  return line + fmt::format("{:<9} {:>8.3f} s {:>8}  {}: {}\n", atoll::name(operation.state),
                            seconds, speed, operation.communicator, operation.text);
}

std::string cut(const std::string& line, const Limits& limits) {
  const auto most = static_cast<std::size_t>(limits.columns);
  return most == 0 || line.size() <= most ? line : line.substr(0, most - 1) + '\n';
}

}  // namespace

std::string table_of(const View& view, const Limits& limits) {
  const auto& ranks = view.ranks;
  const auto answers =
      std::ranges::count(ranks, atoll::ObservedRank::State::answers, &atoll::ObservedRank::state);
  std::vector<std::string> lines{
      fmt::format("job at {}: {} ranks, {} answer\n", view.address, ranks.size(), answers)};
  std::set<int> late;
  std::size_t unnamed = 0;
  for (const atoll::WaitedFor& waited : atoll::waited_for(ranks)) {
    if (waited.seconds < shortest_wait && waited.waiting > 0) continue;
    late.insert(waited.rank);
    const atoll::ObservedRank& rank = ranks[static_cast<std::size_t>(waited.rank)];
    if (late.size() > most_waited) {
      ++unnamed;
      continue;
    }
    lines.push_back(fmt::format("rank {} (host {}, pid {}) {}; {} wait for {:.3f} s\n", waited.rank,
                                rank.host, rank.pid, waited.reason, waited.waiting,
                                waited.seconds));
  }
  if (unnamed > 0) lines.push_back(fmt::format("and {} more ranks are waited for\n", unnamed));
  if (late.empty()) lines.push_back("no rank keeps others waiting\n");
  lines.push_back(fmt::format(" {:<16} {:<14} {:>6}  {:<9} {:>10} {:>8}  {}\n", "ranks", "host",
                              "step", "state", "for", "GB/s", "communicator: operation"));
  const std::vector<Row> rows = rows_of(view, late);
  // Leaves one line for the number of rows that do not fit, and one for the cursor.
  const auto height = static_cast<std::size_t>(limits.lines);
  const std::size_t most =
      height == 0 ? most_rows : height - std::min(height - 1, lines.size() + 2);
  for (std::size_t i = 0; i < std::min(most, rows.size()); ++i)
    lines.push_back(line_of(view, rows[i]));
  if (rows.size() > most) lines.push_back(fmt::format("and {} more rows\n", rows.size() - most));
  std::string text;
  for (const std::string& line : lines) text += cut(line, limits);
  return text;
}

std::string json_of(const View& view) {
  Json list = Json::array();
  for (std::size_t i = 0; i < view.ranks.size(); ++i) {
    const atoll::ObservedRank& rank = view.ranks[i];
    Json entry{{"rank", i},         {"state", state_key(rank.state)},
               {"host", rank.host}, {"pid", rank.pid},
               {"step", rank.step}, {"bytes", rank.bytes}};
    const auto speed = rate(view, i);
    entry["bytes_per_second"] = speed ? Json(*speed) : Json();
    if (rank.operation) {
      const atoll::ObservedOperation& operation = *rank.operation;
      entry["operation"] = {{"communicator", operation.communicator},
                            {"kind", operation.kind},
                            {"text", operation.text},
                            {"sequence", operation.sequence},
                            {"bytes", operation.bytes},
                            {"state", atoll::name(operation.state)},
                            {"seconds", operation.seconds}};
    }
    list.push_back(std::move(entry));
  }
  Json waited = Json::array();
  for (const atoll::WaitedFor& one : atoll::waited_for(view.ranks)) {
    waited.push_back({{"rank", one.rank},
                      {"waiting", one.waiting},
                      {"seconds", one.seconds},
                      {"reason", one.reason}});
  }
  const Json document{{"address", view.address}, {"waited_for", waited}, {"ranks", list}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::string json_of(const std::string& end) {
  return Json{{"end", end}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace topo

// Writes Chrome's trace event format. A rank becomes a process and a stream becomes a thread; `ts`
// and `dur` are in us. Specification:
// docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#include "atoll/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace atoll_v1::atoll {
namespace {

using nlohmann::json;

// The order of rows in the trace, from top to bottom. Rows with other names follow, sorted by name.
constexpr std::array<std::string_view, 6> usual_rows = {"step",   "compute", "update",
                                                        "gather", "reduce",  "replicate"};

struct TraceRow {
  std::string name;
  // Records sorted by their begin; if two have the same begin, the longer one comes first.
  std::vector<const TraceRecord*> records;
};

std::size_t rank_of(std::string_view row) {
  return static_cast<std::size_t>(std::ranges::find(usual_rows, row) - usual_rows.begin());
}

// Puts each record into the first row of its stream in which it overlaps other records only as a
// whole (one contains the other).
std::vector<TraceRow> rows_of_stream(const std::string& name,
                                     const std::vector<const TraceRecord*>& records) {
  std::vector<TraceRow> rows;
  // For each row, the end times of the spans that contain the begin of the current record.
  std::vector<std::vector<std::int64_t>> open;
  for (const TraceRecord* record : records) {
    std::size_t row = 0;
    for (; row < rows.size(); ++row) {
      auto& ends = open[row];
      while (!ends.empty() && ends.back() <= record->begin_ns) ends.pop_back();
      if (ends.empty() || record->end_ns <= ends.back()) break;
    }
    if (row == rows.size()) {
      rows.push_back({row == 0 ? name : fmt::format("{} ({})", name, row + 1), {}});
      open.emplace_back();
    }
    rows[row].records.push_back(record);
    open[row].push_back(record->end_ns);
  }
  return rows;
}

std::vector<TraceRow> rows_of(const std::vector<const TraceRecord*>& records) {
  std::map<std::pair<std::size_t, std::string>, std::vector<const TraceRecord*>> streams;
  for (const TraceRecord* record : records) {
    streams[{rank_of(record->row), record->row}].push_back(record);
  }
  std::vector<TraceRow> rows;
  for (const auto& [key, mine] : streams) {
    for (TraceRow& row : rows_of_stream(key.second, mine)) rows.push_back(std::move(row));
  }
  return rows;
}

double us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

std::string title(const TraceRecord& record) {
  if (record.activity == Activity::work) return record.label;
  const std::string kind(name(record.activity));
  return record.label.empty() ? kind : kind + " " + record.label;
}

std::string_view category(Activity activity) {
  if (activity == Activity::wait) return "wait";
  return is_collective(activity) ? "communication" : "work";
}

json span_event(const TraceProcess& process, std::size_t row, const TraceRecord& record) {
  json event = {{"ph", "X"},
                {"pid", process.rank},
                {"tid", row},
                {"name", title(record)},
                {"cat", category(record.activity)},
                {"ts", us(record.begin_ns - process.zero_ns)},
                {"dur", us(record.end_ns - record.begin_ns)}};
  if (is_collective(record.activity)) {
    const TraceBandwidth rate = bandwidth(record);
    event["args"] = {{"bytes", record.bytes},
                     {"axis", record.axis},
                     {"ranks", record.ranks},
                     {"algorithm_GB_per_s", rate.algorithm},
                     {"bus_GB_per_s", rate.bus},
                     {"waited_us", us(record.waited_ns)},
                     {"compute_waited", record.waited_ns > 0}};
  }
  return event;
}

json named(const TraceProcess& process, std::string_view what, json args) {
  return {{"ph", "M"}, {"pid", process.rank}, {"name", what}, {"args", std::move(args)}};
}

void append(std::string& events, const json& event) {
  if (!events.empty()) events += ",\n";
  events += event.dump(-1, ' ', false, json::error_handler_t::replace);
}

void add_row_names(std::string& events, const TraceProcess& process,
                   const std::vector<TraceRow>& rows) {
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (json event : {named(process, "thread_name", {{"name", rows[row].name}}),
                       named(process, "thread_sort_index", {{"sort_index", row}})}) {
      event["tid"] = row;
      append(events, event);
    }
  }
}

}  // namespace

std::string_view name(Activity activity) noexcept {
  constexpr std::array<std::string_view, 5> names = {"all_gather", "reduce_scatter", "all_reduce",
                                                     "wait", "work"};
  return names[static_cast<std::size_t>(activity)];
}

bool is_collective(Activity activity) noexcept {
  return activity != Activity::wait && activity != Activity::work;
}

std::int64_t communication_ns(std::span<const TraceRecord> records, std::int64_t from_ns) {
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  for (const TraceRecord& record : records) {
    if (is_collective(record.activity)) spans.emplace_back(record.begin_ns, record.end_ns);
  }
  std::ranges::sort(spans);
  std::int64_t sum = 0, covered = from_ns;  // spans before `covered` are counted already
  for (const auto& [begin, end] : spans) {
    if (end > covered) sum += end - std::max(begin, covered);
    covered = std::max(covered, end);
  }
  return sum;
}

TraceBandwidth bandwidth(const TraceRecord& collective) {
  const std::int64_t ns = collective.end_ns - collective.begin_ns;
  if (ns <= 0 || !is_collective(collective.activity)) return {};
  const double rate = static_cast<double>(collective.bytes) / static_cast<double>(ns);
  const double share = static_cast<double>(collective.ranks - 1) / collective.ranks;
  return {rate, rate * share * (collective.activity == Activity::all_reduce ? 2 : 1)};
}

std::string chrome_events(const TraceProcess& process, std::span<const TraceRecord> records) {
  std::vector<const TraceRecord*> shown;
  shown.reserve(records.size());
  for (const TraceRecord& record : records) shown.push_back(&record);
  std::ranges::stable_sort(shown, [](const TraceRecord* a, const TraceRecord* b) {
    return std::pair(a->begin_ns, -a->end_ns) < std::pair(b->begin_ns, -b->end_ns);
  });
  const std::size_t kept = std::min(shown.size(), process.most_records);
  const std::uint64_t left_out = process.left_out + (shown.size() - kept);
  const std::int64_t end = kept == 0 ? process.zero_ns : shown[kept - 1]->begin_ns;
  shown.resize(kept);

  std::string events;
  std::string title = fmt::format("rank {}", process.rank);
  if (!process.host.empty()) title += " on " + process.host;
  append(events, named(process, "process_name", {{"name", title}}));
  append(events, named(process, "process_sort_index", {{"sort_index", process.rank}}));
  const std::vector<TraceRow> rows = rows_of(shown);
  add_row_names(events, process, rows);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (const TraceRecord* record : rows[row].records) {
      append(events, span_event(process, row, *record));
    }
  }
  if (left_out > 0) {
    append(events, {{"ph", "i"},
                    {"s", "p"},
                    {"pid", process.rank},
                    {"tid", 0},
                    {"ts", us(end - process.zero_ns)},
                    {"name", fmt::format("{} records left out", left_out)}});
  }
  return events;
}

std::string chrome_trace(std::span<const std::string> events) {
  std::string document = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  bool first = true;
  for (const std::string& part : events) {
    if (part.empty()) continue;
    if (!std::exchange(first, false)) document += ",\n";
    document += part;
  }
  return document + "\n]}\n";
}

}  // namespace atoll_v1::atoll

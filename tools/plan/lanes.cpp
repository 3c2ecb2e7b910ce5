#include "plan/lanes.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "fail.hpp"
#include "json_reader.hpp"

namespace plan {
namespace {

using nlohmann::json;

// Adds a span of a row. `label` of a wait begins with the name of the collective stream that the
// compute stream waits for.
void add(LaneTimes& times, std::string_view row, bool waits, std::string_view label,
         double seconds) {
  if (row.starts_with("gather")) {
    times.gather += seconds;
  } else if (row.starts_with("reduce")) {
    times.reduce += seconds;
  } else if (row.starts_with("replicate")) {
    times.replicate += seconds;
  } else if (!row.starts_with("compute")) {
    return;
  } else if (!waits) {
    const bool forward = label.starts_with("forward"), backward = label.starts_with("backward");
    (forward ? times.forward : backward ? times.backward : times.other) += seconds;
  } else if (label.starts_with("gather")) {
    times.exposed_gather += seconds;
  } else if (label.starts_with("replicate")) {
    times.exposed_replicate += seconds;
  } else {
    times.exposed_reduce += seconds;
  }
}

void divide(LaneTimes& times, double by) {
  for (double* const value :
       {&times.forward, &times.backward, &times.other, &times.exposed_gather, &times.exposed_reduce,
        &times.exposed_replicate, &times.gather, &times.reduce, &times.replicate}) {
    *value /= by;
  }
}

}  // namespace

LaneTimes lanes_of(std::span<const atoll::TraceRecord> step) {
  LaneTimes times;
  for (const atoll::TraceRecord& record : step) {
    add(times, record.row, record.activity == atoll::Activity::wait, record.label,
        static_cast<double>(record.end_ns - record.begin_ns) * 1e-9);
  }
  return times;
}

LaneTimes read_lanes(const std::filesystem::path& trace) {
  const json document = train::read_object(trace);
  LaneTimes times;
  try {
    std::map<std::pair<int, int>, std::string> rows;
    std::set<int> ranks;
    std::set<std::string> steps;
    for (const json& event : document.at("traceEvents")) {
      const std::pair row(event.value("pid", 0), event.value("tid", 0));
      if (event.value("name", "") == "thread_name") rows[row] = event.at("args").at("name");
    }
    for (const json& event : document.at("traceEvents")) {
      if (event.value("ph", "") != "X") continue;
      const std::pair row(event.at("pid").get<int>(), event.at("tid").get<int>());
      std::string label = event.at("name");
      const bool waits = event.value("cat", "") == "wait";
      if (waits && label.starts_with("wait ")) label.erase(0, 5);
      ranks.insert(row.first);
      if (rows[row] == "step") steps.insert(label);
      add(times, rows[row], waits, label, event.at("dur").get<double>() * 1e-6);
    }
    if (steps.empty()) train::fail(atoll::ErrorCode::bad_data, "{}: no whole step", trace.string());
    divide(times, static_cast<double>(ranks.size() * steps.size()));
  } catch (const json::exception&) {
    train::fail(atoll::ErrorCode::bad_data, "{}: not a trace of atoll-train", trace.string());
  }
  return times;
}

std::string to_text(const LaneTimes& expected, const LaneTimes& measured) {
  std::string text =
      fmt::format("{:<30}{:>12}{:>12}\n", "seconds of a step by stream", "expected", "measured");
  const auto row = [&](const char* what, double LaneTimes::*member) {
    if (expected.*member <= 0 && measured.*member <= 0) return;
    text += fmt::format("  {:<28}{:>12.4f}{:>12.4f}\n", what, expected.*member, measured.*member);
  };
  row("compute: forward", &LaneTimes::forward);
  row("compute: backward", &LaneTimes::backward);
  row("compute: other work", &LaneTimes::other);
  row("compute waits for gather", &LaneTimes::exposed_gather);
  row("compute waits for reduce", &LaneTimes::exposed_reduce);
  row("compute waits for replicate", &LaneTimes::exposed_replicate);
  row("gather busy", &LaneTimes::gather);
  row("reduce busy", &LaneTimes::reduce);
  row("replicate busy", &LaneTimes::replicate);
  return text;
}

}  // namespace plan

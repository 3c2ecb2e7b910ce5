// Tests of chrome_events() and chrome_trace() with invented records.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "atoll/trace.hpp"

using atoll::Activity;
using atoll::TraceRecord;
using doctest::Approx;
using nlohmann::json;

namespace {

TraceRecord work(std::string row, std::string label, std::int64_t begin, std::int64_t end) {
  return {.row = std::move(row), .label = std::move(label), .begin_ns = begin, .end_ns = end};
}

TraceRecord collective(Activity activity, std::int64_t begin, std::int64_t end) {
  return {.activity = activity,
          .row = "gather",
          .label = "layers.0",
          .begin_ns = begin,
          .end_ns = end,
          .bytes = 8'000,
          .axis = "shard",
          .ranks = 4};
}

std::vector<json> events_of(const atoll::TraceProcess& process,
                            const std::vector<TraceRecord>& records) {
  const std::vector<std::string> parts = {atoll::chrome_events(process, records)};
  const json document = json::parse(atoll::chrome_trace(parts));
  return document.at("traceEvents").get<std::vector<json>>();
}

// Returns the name of each row by its thread id.
std::map<int, std::string> rows_of(const std::vector<json>& events) {
  std::map<int, std::string> rows;
  for (const json& event : events) {
    if (event["name"] == "thread_name") rows[event["tid"]] = event["args"]["name"];
  }
  return rows;
}

std::vector<json> spans_of(const std::vector<json>& events) {
  std::vector<json> spans;
  for (const json& event : events) {
    if (event["ph"] == "X") spans.push_back(event);
  }
  return spans;
}

}  // namespace

TEST_CASE("a collective has bytes, axis, bandwidth and how long compute waited") {
  auto record = collective(Activity::all_gather, 3'000, 5'000);
  record.waited_ns = 500;
  const auto events = events_of({.rank = 2, .host = "alpha", .zero_ns = 1'000}, {record});
  CHECK(events[0]["args"]["name"] == "rank 2 on alpha");
  const auto spans = spans_of(events);
  REQUIRE(spans.size() == 1);
  CHECK(spans[0]["pid"] == 2);
  CHECK(spans[0]["name"] == "all_gather layers.0");
  CHECK(spans[0]["cat"] == "communication");
  CHECK(spans[0]["ts"] == Approx(2));
  CHECK(spans[0]["dur"] == Approx(2));
  const json& args = spans[0]["args"];
  CHECK(args["bytes"] == 8'000);
  CHECK(args["axis"] == "shard");
  CHECK(args["ranks"] == 4);
  CHECK(args["algorithm_GB_per_s"] == Approx(4));  // 8,000 bytes in 2 us are 4 GB/s
  // The bus bandwidth of 4 ranks is 3/4 of the algorithm bandwidth.
  CHECK(args["bus_GB_per_s"] == Approx(3));
  CHECK(args["waited_us"] == Approx(0.5));
  CHECK(args["compute_waited"] == true);
}

TEST_CASE("bandwidth: all_reduce crosses the link twice; no time, no bandwidth") {
  CHECK(atoll::bandwidth(collective(Activity::all_reduce, 0, 2'000)).bus == Approx(6));
  CHECK(atoll::bandwidth(collective(Activity::reduce_scatter, 0, 2'000)).bus == Approx(3));
  CHECK(atoll::bandwidth(collective(Activity::all_gather, 7, 7)).algorithm == 0);
}

TEST_CASE("rows have a fixed order that does not depend on the order of records") {
  const auto rows = rows_of(events_of({}, {work("zebra", "z", 0, 1), work("replicate", "o", 0, 1),
                                           work("gather", "g", 5, 6), work("compute", "c", 2, 3)}));
  CHECK(rows ==
        std::map<int, std::string>{{0, "compute"}, {1, "gather"}, {2, "replicate"}, {3, "zebra"}});
}

TEST_CASE("spans in one row are disjoint or nested") {
  // Span b is inside span a. Span c partly overlaps span a, so c moves to another row. Span d
  // begins after a and c have ended.
  const auto events = events_of({}, {work("compute", "d", 200, 300), work("compute", "c", 50, 150),
                                     work("compute", "b", 0, 40), work("compute", "a", 0, 100)});
  auto rows = rows_of(events);
  std::map<std::string, std::string> row_of;
  for (const json& span : spans_of(events)) row_of[span["name"]] = rows[span["tid"]];
  CHECK(row_of == std::map<std::string, std::string>{
                      {"a", "compute"}, {"b", "compute"}, {"c", "compute (2)"}, {"d", "compute"}});
  CHECK(spans_of(events)[0]["name"] == "a");  // an enclosing span precedes the spans inside it
}

TEST_CASE("names with quotes, line ends and bytes that are not UTF-8 leave a valid document") {
  const auto events =
      events_of({.rank = 0, .host = "a\"\\\n"}, {work("compute", "x\"y\\z\n\x01\xff", 0, 1)});
  CHECK(events[0]["args"]["name"] == "rank 0 on a\"\\\n");
  CHECK(spans_of(events)[0]["name"] == "x\"y\\z\n\x01\xef\xbf\xbd");
}

TEST_CASE("a trace has a limited size and reports the number of missing records") {
  std::vector<TraceRecord> records;
  for (int i = 0; i < 10; ++i) records.push_back(work("compute", "w", 10 * i, 10 * i + 5));
  const auto events = events_of({.left_out = 4, .most_records = 7}, records);
  CHECK(spans_of(events).size() == 7);
  CHECK(events.back()["ph"] == "i");
  CHECK(events.back()["name"] == "7 records left out");
  const auto all = events_of({}, records);
  CHECK(all.back()["ph"] == "X");
}

TEST_CASE("chrome_trace() joins the processes and omits a process without events") {
  const std::vector<TraceRecord> records = {work("compute", "w", 0, 1)};
  const std::vector<std::string> parts = {atoll::chrome_events({.rank = 0}, records), "",
                                          atoll::chrome_events({.rank = 1}, records)};
  const json document = json::parse(atoll::chrome_trace(parts));
  std::map<int, int> spans;
  for (const json& event : document["traceEvents"]) spans[event["pid"]] += event["ph"] == "X";
  CHECK(spans == std::map<int, int>{{0, 1}, {1, 1}});
  CHECK(json::parse(atoll::chrome_trace({}))["traceEvents"].empty());
}

TEST_CASE("communication is the time in which at least one collective ran") {
  const std::vector<TraceRecord> records = {
      collective(Activity::all_reduce, 100, 200), collective(Activity::all_gather, 0, 50),
      collective(Activity::reduce_scatter, 40, 60), collective(Activity::all_gather, 110, 120),
      work("compute", "w", 0, 1'000)};
  CHECK(atoll::communication_ns(records) == 160);
  CHECK(atoll::communication_ns({}) == 0);
  CHECK(atoll::communication_ns(records, 0) == 160);
  CHECK(atoll::communication_ns(records, 50) == 110);
  CHECK(atoll::communication_ns(records, 150) == 50);
  CHECK(atoll::communication_ns(records, 200) == 0);
}

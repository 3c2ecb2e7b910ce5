// Tests of the trace file that --trace writes, and of the step times in a trace.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "job.hpp"
#include "unit/train/data_temporary.hpp"

using namespace train_test;
using doctest::Approx;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr int ranks = 4;

train::RunOptions base(const TemporaryFolder& folder) {
  train::RunOptions options = plain_run(folder.path(), true);
  options.trace = (folder.path() / "trace.json").string();
  options.samples = 40;
  options.seq = 64;
  options.global_batch = 8;
  options.steps = 4;
  options.untimed_steps = 1;
  options.mesh = "2x2";
  return options;
}

using Row = std::pair<int, std::string>;  // number of the rank and name of the stream

std::map<Row, std::vector<json>> spans_by_row(const json& document) {
  std::map<std::pair<int, int>, std::string> names;
  for (const json& event : document.at("traceEvents")) {
    if (event["name"] == "thread_name") {
      names[{event["pid"], event["tid"]}] = event["args"]["name"];
    }
  }
  std::map<Row, std::vector<json>> rows;
  for (const json& event : document.at("traceEvents")) {
    if (event["ph"] != "X") continue;
    rows[{event["pid"], names.at({event["pid"], event["tid"]})}].push_back(event);
  }
  return rows;
}

std::set<std::string> rows_of(const std::map<Row, std::vector<json>>& spans, int rank) {
  std::set<std::string> rows;
  for (const auto& [row, events] : spans) {
    if (row.first == rank) rows.insert(row.second);
  }
  return rows;
}

// Checks that the spans of one row of the trace are in order and properly nested.
void check_nesting(const std::vector<json>& spans) {
  // Tolerance in microseconds, because timestamps have 3 decimals.
  constexpr double rounding = 0.002;
  std::vector<double> open;
  double last = 0;
  for (const json& span : spans) {
    const double begin = span["ts"], end = begin + span["dur"].get<double>();
    CHECK(begin >= last);
    last = begin;
    while (!open.empty() && open.back() <= begin + rounding) open.pop_back();
    if (!open.empty()) CHECK(end <= open.back() + rounding);
    open.push_back(end);
  }
}

bool is_collective(const json& span) { return span["cat"] == "communication"; }

// Returns the bytes that a rank moved over an axis. The optimizer's gradient norms are left out,
// because the engine's count also omits them.
std::int64_t traced_bytes(const std::map<Row, std::vector<json>>& spans, int rank,
                          const std::string& axis) {
  std::int64_t sum = 0;
  for (const auto& [row, events] : spans) {
    for (const json& span : events) {
      if (row.first != rank || !is_collective(span) || span["args"]["axis"] != axis) continue;
      if (span["name"] != "all_gather norm") sum += span["args"]["bytes"].get<std::int64_t>();
    }
  }
  return sum;
}

bool has_span(const std::vector<json>& spans, const std::string& name) {
  return std::ranges::any_of(spans, [&](const json& span) { return span["name"] == name; });
}

}  // namespace

TEST_CASE("the trace of a run: a row per stream of every rank, all bytes, spans that nest") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.trace_steps = "1:4";
  for (const std::string strategy : {"hybrid_shard", "shard_grad"}) {
    CAPTURE(strategy);
    options.strategy = strategy;
    const auto results = run_job(ranks, options);
    const auto spans = spans_by_row(json::parse(TemporaryFolder::read(options.trace)));
    std::map<std::string, std::int64_t> moved;
    for (const auto& step : results[0].run.steps) {
      for (const auto& [axis, bytes] : step.axis_bytes) moved[axis] += bytes;
    }
    CHECK(moved.contains("replicate") == (strategy == "hybrid_shard"));
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      auto expected = std::set<std::string>{"step", "compute", "gather", "reduce"};
      if (strategy == "hybrid_shard") expected.insert("replicate");
      CHECK(rows_of(spans, rank) == expected);
      for (const std::string axis : {"shard", "replicate"}) {
        CHECK(traced_bytes(spans, rank, axis) == moved[axis]);
      }
      CHECK(spans.at({rank, "step"}).size() == 4);
      const auto& compute = spans.at({rank, "compute"});
      for (const char* name :
           {"forward layers.0", "backward layers.1", "norm", "update layers.0"}) {
        CAPTURE(name);
        CHECK(has_span(compute, name));
      }
    }
    for (const auto& [row, events] : spans) {
      CAPTURE(row.first);
      CAPTURE(row.second);
      check_nesting(events);
    }
  }
}

TEST_CASE("a trace shows how long compute waited for each collective") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.trace_steps = "2:4";
  const auto results = run_job(ranks, options);
  const auto document = json::parse(TemporaryFolder::read(options.trace));
  double waits_us = 0;
  for (const json& span : document["traceEvents"]) {
    if (span["ph"] != "X") continue;
    CHECK(span["ts"].get<double>() >= 0);
    if (span["cat"] == "wait") waits_us += span["dur"].get<double>();
    if (!is_collective(span)) continue;
    const json& args = span["args"];
    CHECK(args["ranks"] == 2);
    CHECK(args["waited_us"].get<double>() <= span["dur"].get<double>() + 0.002);
    CHECK(args["compute_waited"].get<bool>() == (args["waited_us"].get<double>() > 0));
    CHECK(args["algorithm_GB_per_s"].get<double>() ==
          Approx(args["bytes"].get<double>() / span["dur"].get<double>() / 1e3).epsilon(0.01));
  }
  double exposed_us = 0;
  for (const auto& step : results[0].run.steps) {
    CHECK(step.exposed_worst_seconds >= step.exposed_comm_seconds);
    CHECK(step.communication_seconds <= step.seconds + 1e-6);
    CHECK(step.communication_seconds > 0);
    CHECK(step.compute_seconds > 0);
    CHECK(step.enqueue_seconds > 0);
    CHECK(step.enqueue_seconds <= step.seconds + 1e-6);
    CHECK(step.compute_seconds + step.exposed_comm_seconds <= step.seconds + 1e-6);
    if (step.step >= 2) exposed_us += step.exposed_comm_seconds * ranks * 1e6;
  }
  // The trace's timestamps around a wait include slightly more than the wait itself.
  CHECK(waits_us >= 0.9 * exposed_us);
}

TEST_CASE("a trace covers the chosen steps, by default 5 after the untimed ones") {
  train::RunOptions options;
  CHECK(train::traced_steps(options, 0).last < train::traced_steps(options, 0).first);
  options.trace = "x";
  options.steps = 100;
  options.untimed_steps = 2;
  CHECK(train::traced_steps(options, 0).first == 3);
  CHECK(train::traced_steps(options, 0).last == 7);
  CHECK(train::traced_steps(options, 40).first == 43);
  options.steps = 2;
  CHECK(train::traced_steps(options, 0).first == 2);  // a run of 2 steps traces only its last step
  CHECK(train::traced_steps(options, 0).last == 2);
  options.trace_steps = "1:2";
  CHECK_NOTHROW(train::check(options = train::resolved(options)));
  CHECK(train::traced_steps(options, 40).last == 2);
  for (const char* wrong : {"0:2", "2:1", "1:3", "1", "1:", ":2", "1:2x", "a:b", "1-2", "-1:2"}) {
    CAPTURE(wrong);
    options.trace_steps = wrong;
    CHECK_THROWS_AS(train::check(options), atoll::Error);
  }
  options.trace_steps = "1:2";
  options.trace.clear();
  CHECK_THROWS_AS(train::check(options), atoll::Error);
}

TEST_CASE("the folder of the trace file need not exist") {
  const TemporaryFolder folder;
  auto options = base(folder);
  options.trace = (fs::path(options.out) / "traces" / "trace.json").string();
  options.mesh = "1x2";
  run_job(2, options);
  CHECK(TemporaryFolder::read(options.trace).find("traceEvents") != std::string::npos);
}

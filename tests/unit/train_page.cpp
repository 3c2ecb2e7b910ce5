// report.html and the comparison of runs, from files of runs that the test writes.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "damaged_json.hpp"
#include "page/compare.hpp"
#include "page/line_chart.hpp"
#include "page/mesh_picture.hpp"
#include "page/page.hpp"
#include "page/run_files.hpp"
#include "page/step_memory.hpp"
#include "page/text.hpp"
#include "page/timeline.hpp"
#include "report/traps.hpp"
#include "train_data_temporary.hpp"

namespace {

using atoll::ErrorCode;
using nlohmann::json;
using train_test::failure_of;
using train_test::TemporaryFolder;
namespace page = train::page;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string steps(int number, double loss) {
  std::string lines;
  for (int i = 1; i <= number; ++i) {
    json step{{"step", i},
              {"loss", loss / i},
              {"eval_loss", nullptr},
              {"grad_norm", 1.5},
              {"learning_rate", 1e-3},
              {"tokens_per_s", 1000 + i},
              {"mfu", 0.25},
              {"exposed_comm_fraction", 0.1},
              {"seconds", 0.5},
              {"compute_s", 0.45},
              {"exposed_s", 0.05},
              {"exposed_worst_s", 0.06}};
    if (i % 5 == 0) step["eval_loss"] = loss / i + 0.1;
    if (i == 3) step["nonfinite"] = true;
    lines += step.dump() + "\n";
  }
  return lines;
}

json plan() {
  return {
      {"hosts", {{{"name", "node<0>"}, {"ranks", {0, 1}}}, {{"name", "node1"}, {"ranks", {2, 3}}}}},
      {"islands", {{0, 1}, {2, 3}}},
      {"order", {0, 1, 2, 3}},
      {"replicate", 2},
      {"shard", 2},
      {"memory", {{"parameters", 5'000'000}, {"activations", 20'000'000}, {"resident", 0}}},
      {"findings", json::array()}};
}

json span(const char* name, const char* kind, int rank, int row, double begin, double duration) {
  return {{"name", name}, {"cat", kind}, {"ph", "X"},      {"pid", rank},
          {"tid", row},   {"ts", begin}, {"dur", duration}};
}

json row(int rank, int number, const char* name) {
  return {{"name", "thread_name"},
          {"ph", "M"},
          {"pid", rank},
          {"tid", number},
          {"args", {{"name", name}}}};
}

json trace() {
  json events = json::array();
  for (int rank = 0; rank < 2; ++rank) {
    events.push_back({{"name", "process_name"},
                      {"ph", "M"},
                      {"pid", rank},
                      {"args", {{"name", "rank on node"}}}});
    events.push_back(row(rank, 0, "step"));
    events.push_back(row(rank, 1, "compute"));
    events.push_back(row(rank, 2, "gather"));
    for (int step = 1; step <= 3; ++step) {
      const double begin = 1000.0 * step;
      events.push_back(span(step == 1   ? "step 1"
                            : step == 2 ? "step 2"
                                        : "step 3",
                            "work", rank, 0, begin, 100.0 * step));
      events.push_back(span("forward layers.0", "work", rank, 1, begin + 10, 20));
      events.push_back(span("wait gather layers.1", "wait", rank, 1, begin + 30, 20));
      events.push_back(span("all_gather layers.1", "communication", rank, 2, begin + 20, 30));
    }
  }
  return {{"traceEvents", events}};
}

// Writes the files of a run and returns its folder.
std::filesystem::path write_run(const TemporaryFolder& folder, const std::string& name, double lr) {
  const auto at = folder.path() / name;
  std::filesystem::create_directories(at);
  folder.write(name + "/steps.jsonl", steps(10, 4));
  folder.write(name + "/run_args.json", json{{"lr", lr},
                                             {"strategy", "hybrid_shard"},
                                             {"mesh", "2x2"},
                                             {"world_size", 4},
                                             {"reduce_dtype", "f32"},
                                             {"trace", "trace.json"},
                                             {"plan", plan()}}
                                            .dump());
  folder.write(name + "/metrics.json", json{{"run_name", name},
                                            {"loss_last", lr * 1000},
                                            {"mfu", 0.25},
                                            {"steps", 10},
                                            {"steps_per_s", 2.0},
                                            {"exposed_comm_fraction", 0.4},
                                            {"tokens_per_s", 1e5},
                                            {"device_memory_bytes", 25'000'000},
                                            {"nonfinite_steps", 1}}
                                           .dump());
  folder.write(name + "/trace.json", trace().dump());
  return at;
}

}  // namespace

TEST_CASE("page: numbers as people read them") {
  using page::Unit;
  CHECK(page::format(12'345, Unit::count) == "12.3 k");
  CHECK(page::format(7, Unit::count) == "7");
  CHECK(page::format(65'345'232, Unit::bytes) == "65.3 MB");
  CHECK(page::format(0.3123, Unit::share) == "31.2 %");
  CHECK(page::format(0.0123, Unit::seconds) == "12.3 ms");
  CHECK(page::format(4e-6, Unit::seconds) == "4 us");
  CHECK(page::format(not_a_number, Unit::number) == "-");
  CHECK(page::escape("<a b=\"'&\">") == "&lt;a b=&quot;&#39;&amp;&quot;&gt;");
  CHECK(page::ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(page::ticks(3, 3, 5).size() == 1);
  CHECK(page::ticks(1.5, std::nextafter(1.5, 2), 5).size() == 1);  // constant but for rounding
  CHECK(page::ticks(0, 0.31, 4).size() == 4);                      // 0, 0.1, 0.2, 0.3
}

TEST_CASE("page: a chart draws its series, leaves gaps and keeps spikes") {
  page::LineChart chart{.title = "Loss <1>"};
  CHECK(page::draw(chart).empty());
  chart.series.push_back({"a", 1, page::Series::Look::line, {1, 2, 3, 4}, {1, not_a_number, 3, 4}});
  const auto small = page::draw(chart);
  CHECK(has(small, "Loss &lt;1&gt;"));
  CHECK_FALSE(has(small, "Loss <1>"));
  CHECK(count(small, "M") >= 2);  // the gap begins a new line
  std::vector<double> x, y;
  for (int i = 0; i < 100'000; ++i) {
    x.push_back(i);
    y.push_back(i == 54'321 ? 9000 : 1);
  }
  chart.series = {{"long", 1, page::Series::Look::line, x, y}};
  const auto large = page::draw(chart);
  CHECK(large.size() < 60'000);
  CHECK(has(large, "9000"));
  chart.series = {{"zero", 1, page::Series::Look::line, {1, 2}, {0, 0}}};
  CHECK_FALSE(has(page::draw(chart), "e-"));  // no axis of rounding errors
  chart.series = {{"none", 1, page::Series::Look::line, {1, 2}, {not_a_number, not_a_number}}};
  CHECK(page::draw(chart).empty());
}

TEST_CASE("page: a logarithmic axis for values that are far apart, so that a spike hides nothing") {
  page::LineChart chart{.title = "Norm", .note = "before clipping", .logarithmic = true};
  chart.series.push_back({"norm", 1, page::Series::Look::line, {1, 2, 3, 4}, {1, 10, 100, 1}});
  const auto is_logarithmic = [&] {
    const auto svg = page::draw(chart);
    CHECK(has(svg, "before clipping, logarithmic") == has(svg, ">100</text>"));
    return has(svg, "before clipping, logarithmic");
  };
  CHECK(is_logarithmic());
  // Equal factors are equal distances.
  const auto svg = page::draw(chart);
  const std::string start = "d=\"M";
  const std::string path = svg.substr(svg.find(start) + start.size());
  double x[3], y[3];
  REQUIRE(std::sscanf(path.c_str(), "%lf %lfL%lf %lfL%lf %lf", &x[0], &y[0], &x[1], &y[1], &x[2],
                      &y[2]) == 6);
  CHECK(y[0] - y[1] == doctest::Approx(y[1] - y[2]).epsilon(0.01));
  CHECK(y[1] - y[2] > 50);
  chart.series[0].y = {10, 20, 30, 40};
  CHECK_FALSE(is_logarithmic());  // not far apart
  chart.series[0].y = {0, 20, 30, 45};
  CHECK_FALSE(is_logarithmic());  // 0 has no logarithm
}

TEST_CASE("page: smoothing has no bias at the start and passes over values that are not finite") {
  const auto out = page::smoothed({2, 2, not_a_number, 2}, 10);
  for (const double value : out) CHECK(value == doctest::Approx(2));
  CHECK(std::isnan(page::smoothed({not_a_number}, 3)[0]));
}

TEST_CASE("report: one file with curves, warnings, memory, timeline, mesh and settings") {
  const TemporaryFolder folder;
  const auto run = write_run(folder, "first", 1e-3);
  const auto file = page::write_report(run);
  CHECK(file == run / "report.html");
  const auto html = TemporaryFolder::read(file);
  for (const char* part :
       {"<h1>first</h1>", "Loss", "evaluation", "Learning rate", "Gradient norm",
        "Tokens per second", "MFU is 25.0 %, below 30 %", "Exposed communication",
        "Memory plan of a rank", "activations", "step 2 took 200 us", "Memory over the step",
        "forward layers.0: 20 us", "2 replicas of 2 shards", "node&lt;0&gt;",
        "rank 3: replica 1, shard 1, island 1", "reduce_dtype",
        "steps with an infinite or NaN loss or gradient norm"}) {
    CAPTURE(part);
    CHECK(has(html, part));
  }
  CHECK_FALSE(has(html, "node<0>"));
  // Nothing is loaded from elsewhere.
  for (const char* part : {"http://", "https://", "src=", "@import", "url("}) {
    CAPTURE(part);
    CHECK_FALSE(has(html, part));
  }
  CHECK(count(html, "<svg") >= 7);
  CHECK(count(html, "<svg") == count(html, "</svg>"));
}

TEST_CASE("report: the memory of a step, by the spans of its trace") {
  json events = json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 0}, {"args", {{"name", "r"}}}});
  for (const auto& [number, name] :
       {std::pair{0, "step"}, {1, "compute"}, {2, "gather"}, {3, "reduce"}}) {
    events.push_back(row(0, number, name));
  }
  const auto collective = [&](const char* name, int row, double begin, double bytes) {
    events.push_back(span(name, "communication", 0, row, begin, 10));
    events.back()["args"] = {{"bytes", bytes}};
  };
  events.push_back(span("step 1", "work", 0, 0, 0, 100));
  collective("all_gather a", 2, 0, 10);   // needed from 0 to 40
  collective("all_gather b", 2, 10, 20);  // from 10 to 60
  collective("all_gather a", 2, 50, 10);  // from 50 to 80
  events.push_back(span("forward a", "work", 0, 1, 20, 20));
  events.push_back(span("forward b", "work", 0, 1, 40, 10));
  events.push_back(span("backward b", "work", 0, 1, 50, 10));
  events.push_back(span("backward a", "work", 0, 1, 60, 20));
  collective("reduce_scatter b", 3, 60, 200);  // whole gradient from 50 to 70
  collective("reduce_scatter a", 3, 80, 100);  // from 60 to 90
  const json trace = {{"traceEvents", events}};
  const json plan = {
      {"parameters", 1000}, {"gathered", 30}, {"whole_gradients", 300}, {"activations", 8}};
  // At 60: the gathered a, both whole gradients, and the activations of a.
  const std::string html = page::draw_step_memory(trace, plan);
  CHECK(has(html, "peak: 1.31 kB after 60 us, in backward a"));
  for (const char* name : {"gathered parameters", "whole gradients", "activations"}) {
    CHECK(has(html, name));
  }
  CHECK_FALSE(has(page::draw_step_memory(trace, {{"parameters", 1000}}), "activations"));
  // Two micro batches that add to whole gradients, which are reduced once: 100 from 20 to 60.
  events = json::array({events[0], events[1], events[2], events[4]});
  events.push_back(span("step 1", "work", 0, 0, 0, 60));
  for (const double begin : {10.0, 30.0}) {
    events.push_back(span("forward a", "work", 0, 1, begin, 10));
    events.push_back(span("backward a", "work", 0, 1, begin + 10, 10));
  }
  collective("reduce_scatter a", 3, 50, 100);
  const std::string twice =
      page::draw_step_memory({{"traceEvents", events}},
                             {{"parameters", 1000}, {"whole_gradients", 100}, {"activations", 8}});
  CHECK(has(twice, "peak: 1.11 kB after 20 us, in backward a"));
  CHECK(page::draw_step_memory(trace, json::object()).empty());
  CHECK(page::draw_step_memory({{"traceEvents", json::array()}}, plan).empty());
}

TEST_CASE("report: a run that has not ended, a foreign trace, broken and missing files") {
  const TemporaryFolder folder;
  const auto run = write_run(folder, "cut", 1e-3);
  std::filesystem::remove(run / "metrics.json");
  folder.write("cut/steps.jsonl", steps(2, 4) + R"({"step": 3, "lo)");
  folder.write("cut/trace.json", R"({"traceEvents": [{"ph": "X", "pid": "seven"}]})");
  const auto html = TemporaryFolder::read(page::write_report(run));
  CHECK(has(html, "has not ended"));
  CHECK(has(html, "events of another form"));
  CHECK(page::read_run(run).steps == 2);
  folder.write("cut/trace.json", "{");
  CHECK(has(TemporaryFolder::read(page::write_report(run)), "is not a Chrome trace"));
  folder.write("cut/run_args.json", "[]");
  const auto broken = failure_of([&] { page::write_report(run); });
  CHECK(broken.code == ErrorCode::bad_data);
  CHECK(broken.says("run_args.json"));
  std::string keys;
  for (int i = 0; i < 2'000; ++i) keys += json{{"step", i}, {std::to_string(i), 1}}.dump() + "\n";
  folder.write("cut/steps.jsonl", keys);
  const auto many = failure_of([&] { (void)page::read_run(run); });
  CHECK(many.code == ErrorCode::bad_data);
  CHECK(many.says(
      "steps.jsonl: line 1000: the file has more than 1000 different keys up to this line"));
  const auto none = failure_of([&] { page::write_report(folder.path()); });
  CHECK(none.code == ErrorCode::not_found);
  CHECK(none.says("--out"));
}

TEST_CASE("compare: figures, the best of them, and the settings that differ") {
  const TemporaryFolder folder;
  std::vector<page::RunFiles> runs;
  runs.push_back(page::read_run(write_run(folder, "first", 1e-3)));
  runs.push_back(page::read_run(write_run(folder, "second", 5e-4)));
  const auto text = page::compare_text(runs);
  CHECK(has(text, "first"));
  CHECK(count(text, "*") == 1);  // both have the same losses
  CHECK_FALSE(has(text, "was resumed"));
  CHECK(has(text, "settings that differ\n  lr"));
  CHECK_FALSE(has(text, "strategy"));
  CHECK_FALSE(has(text, "plan"));
  CHECK(count(text, "\n") < 20);
  const auto html = page::compare_html(runs);
  CHECK(has(html, "2 runs compared"));
  CHECK_FALSE(has(html, "was resumed"));
  CHECK(count(html, "<figure") >= 5);

  // A run that was resumed: metrics.json counts its last 4 steps.
  write_run(folder, "third", 1e-3);
  folder.write("third/steps.jsonl", steps(10, 2));
  folder.write("third/metrics.json",
               json{{"run_name", "third"}, {"steps", 4}, {"mfu", 0.5}}.dump());
  runs.push_back(page::read_run(folder.path() / "third"));
  const std::string note =
      "third was resumed: its speeds, memory and duration are those of 4 of its 10 steps";
  const auto resumed = page::compare_text(runs);
  CHECK(has(resumed, note + "\n"));
  CHECK(has(resumed, "0.5858*"));  // the mean of 2 / i
  CHECK(has(page::compare_html(runs), note));
}

TEST_CASE("traps: each has evidence and remedy") {
  const auto ids = [](const json& args, const json& metrics) {
    std::string all;
    for (const auto& trap : train::find_traps(args, metrics)) {
      CHECK_FALSE(trap.evidence.empty());
      CHECK_FALSE(trap.remedy.empty());
      all += trap.id + " ";
    }
    return all;
  };
  CHECK(ids(json::object(), json::object()).empty());
  json args{{"strategy", "hybrid_shard"}, {"plan", plan()}, {"reduce_dtype", "f32"}};
  CHECK(ids(args, {{"mfu", 0.31}, {"padding_fraction", 0.5}}).empty());
  CHECK(ids(args, {{"mfu", 0.29}, {"padding_fraction", 0.51}}) == "padding mfu ");
  args["reduce_dtype"] = "bf16";
  CHECK(ids(args, json::object()) == "reduce_bf16 ");
  args["reduce_dtype"] = "f32";
  args["strategy"] = "full_shard";
  args["plan"]["shard"] = 4;
  args["plan"]["replicate"] = 1;
  CHECK(ids(args, json::object()) == "shard_across_islands ");
  args["plan"]["islands"] = {{0, 1, 2, 3}};
  CHECK(ids(args, json::object()).empty());
  args["plan"]["findings"] = {
      {{"id", "crosses"}, {"evidence", "a"}, {"consequence", "b"}, {"fix", "c"}}};
  CHECK(ids(args, json::object()) == "mesh_crosses ");
  CHECK(ids(args, {{"eval_loss", 3.0}, {"eval_loss_min", 2.0}, {"nonfinite_steps", 2}}) ==
        "mesh_crosses overfitting nonfinite ");
  const auto remedy = [&](const json& metrics) {
    return train::find_traps(json::object(), metrics)[0].remedy;
  };
  CHECK(has(remedy({{"mfu", 0.1}, {"steps_per_s", 1.0}, {"data_wait_s", 0.5}}), "data"));
  CHECK(has(remedy({{"mfu", 0.1}, {"exposed_comm_fraction", 0.5}}), "communication"));
  // Nothing in the files makes it fail.
  CHECK(
      ids({{"plan", {{"shard", 2}, {"order", {0, 9, "x"}}, {"islands", {3, {7}}}}}}, json::object())
          .empty());
}

TEST_CASE("page: damaged settings are refused in one line that names the file") {
  const TemporaryFolder folder;
  const auto at = write_run(folder, "run", 1e-3);
  const auto whole = json::parse(TemporaryFolder::read(at / "run_args.json"));
  int refused = 0;
  atoll_test::each_damage(whole, [&](const json& damaged, const std::string& how) {
    CAPTURE(how);
    folder.write("run/run_args.json", damaged.dump());
    try {
      const auto run = page::read_run(at);
      (void)page::report_html(run);
      (void)page::compare_text({run, run});
      (void)page::compare_html({run, run});
    } catch (const atoll::Error& error) {
      const std::string what = error.what();
      CAPTURE(what);
      CHECK(has(what, "run_args.json: \""));
      CHECK(!has(what, "json.exception"));
      CHECK(!has(what, "\n"));
      ++refused;
    }
  });
  CHECK(refused > 50);
}

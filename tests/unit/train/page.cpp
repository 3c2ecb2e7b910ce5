// The data of report.html and of the comparison of runs, from files of runs that the test writes.
// tests/html checks what the page draws from such data.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "html/document.hpp"
#include "page/page.hpp"
#include "page/run_files.hpp"
#include "page/timeline.hpp"
#include "report/warnings.hpp"
#include "unit/damaged_json.hpp"
#include "unit/train/data_temporary.hpp"

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

// The data that a page contains.
json data_in(const std::string& page) {
  const std::string start = "id=\"report\">";
  const auto at = page.find(start) + start.size();
  return json::parse(page.substr(at, page.find("</script>", at) - at));
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
                                             {"seed", 18446744073709551615ULL},
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
                                            {"nonfinite_steps", 1},
                                            {"list", {1, 2}},
                                            {"axis_bytes", {{"shard", 3}}}}
                                           .dump());
  folder.write(name + "/trace.json", trace().dump());
  return at;
}

}  // namespace

TEST_CASE("document: hostile texts stay in the element of the data, and nothing is loaded") {
  const json data{{"kind", "run"},
                  {"title", "</script><!--<script>\\u003c\u2028"},
                  {"broken", "\xff"},
                  {"{{report}}", 1}};
  const auto page = html::document(data);
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(page.ends_with("</html>\n"));
  auto expected = data;
  expected["broken"] = "\xef\xbf\xbd";
  CHECK(data_in(page) == expected);
  const auto plain = html::document(json::object());
  for (const char* part : {"<!--", "<script", "</script>"}) {
    CAPTURE(part);
    CHECK(count(page, part) == count(plain, part));
  }
  // The only URLs are the XML namespaces of HTML and SVG, so the page loads nothing.
  CHECK(count(plain, "http://www.w3.org/") == count(plain, "http"));
  for (const char* part : {"src=", "href=", "@import", "url(", "innerHTML"}) {
    CAPTURE(part);
    CHECK_FALSE(has(plain, part));
  }
}

TEST_CASE("page: long curves keep their spikes") {
  page::RunFiles run;
  run.steps = 4;
  run.columns["step"] = {1, 2, 3, 4};
  CHECK(page::curve_of(run, {1, not_a_number, 3.0000000001, 4}).dump() ==
        R"({"x":[1.0,2.0,3.0,4.0],"y":[1.0,null,3.0,4.0]})");
  run.steps = 100'000;
  std::vector<double> steps, values;
  for (int i = 0; i < 100'000; ++i) {
    steps.push_back(i);
    values.push_back(i == 54'321 ? 9000 : i < 500 ? not_a_number : 1 + 1e-6 * i);
  }
  run.columns["step"] = steps;
  const auto curve = page::curve_of(run, values);
  CHECK(curve["x"].size() <= 600);
  CHECK(curve["x"].size() == curve["y"].size());
  const auto spike = std::ranges::find(curve["y"], json(9000.0));
  REQUIRE(spike != curve["y"].end());
  CHECK(curve["x"][static_cast<std::size_t>(spike - curve["y"].begin())] == 54'321);
}

TEST_CASE("page: smoothing has no bias at the start and passes over values that are not finite") {
  const auto out = page::smoothed({2, 2, not_a_number, 2}, 10);
  for (const double value : out) CHECK(value == doctest::Approx(2));
  CHECK(std::isnan(page::smoothed({not_a_number}, 3)[0]));
}

TEST_CASE("report: figures, curves, warnings, timeline, mesh and settings in one file") {
  const TemporaryFolder folder;
  const auto run = write_run(folder, "first", 1e-3);
  const auto file = page::write_report(run);
  CHECK(file == run / "report.html");
  const auto report = data_in(TemporaryFolder::read(file));
  CHECK(report["kind"] == "run");
  CHECK(report["title"] == "first");
  CHECK(report["plan"] == plan());
  CHECK(report["settings"]["lr"] == "0.001");
  CHECK(report["settings"]["seed"] == "18446744073709551615");  // exact, so as a text
  CHECK_FALSE(report["settings"].contains("plan"));
  CHECK(report["metrics"]["mfu"] == 0.25);
  CHECK(report["metrics"]["list"] == "[1,2]");
  CHECK_FALSE(report["metrics"].contains("axis_bytes"));
  CHECK(has(report["warnings"].dump(), "MFU is 25.0 %, below 30 %"));
  CHECK(report["curves"]["nonfinite"]["y"][2] == 1.0);
  CHECK(report["curves"]["loss"]["y"][1] == 2.0);
  CHECK(report["curves"]["eval_loss"]["y"][3].is_null());
  CHECK(report["curves"]["eval_loss"]["y"][4] == 0.9);
  CHECK_FALSE(report["curves"].contains("loss_smoothed"));  // too few steps
  CHECK(report["timeline"]["name"] == "step 2");
  folder.write("first/steps.jsonl", steps(2'000, 4));
  const auto longer = page::report_of(page::read_run(run));
  CHECK(longer["curves"].contains("loss_smoothed"));
  CHECK(longer["curves"]["loss"]["x"].size() <= 600);
}

TEST_CASE("report: the traced step of median duration") {
  const auto step = page::timeline_of(trace());
  CHECK(step["us"] == 200.0);
  CHECK(step["ranks"] == 2);
  CHECK(step["rows"] ==
        json{{0, 1, "compute"}, {0, 2, "gather"}, {1, 1, "compute"}, {1, 2, "gather"}});
  // The lowest rank has spans since the previous step, the other rank only those of the step.
  const auto spans_of = [&](int rank) {
    json begins = json::array();
    for (const json& one : step["spans"]) {
      if (one[0] == rank && one[4] == "forward layers.0") begins.push_back(one[2]);
    }
    return begins;
  };
  CHECK(spans_of(0) == json{-990.0, 10.0});
  CHECK(spans_of(1) == json{10.0});
  CHECK(page::timeline_of({{"traceEvents", json::array()}}).is_null());
}

TEST_CASE("report: spans too narrow to see, and ranks beyond the eighth, are left out") {
  json events = json::array();
  for (int rank = 0; rank < 10; ++rank) {
    events.push_back(
        {{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", "r"}}}});
    events.push_back(row(rank, 0, "step"));
    events.push_back(row(rank, 1, "compute"));
    events.push_back(span("step 1", "work", rank, 0, 0, 10'000));
    events.push_back(span("wide", "work", rank, 1, 100, 10));
    events.push_back(span("narrow", "work", rank, 1, 200, 1));
    events.back()["args"] = {{"bytes", 7.0}};
  }
  const auto step = page::timeline_of({{"traceEvents", events}});
  CHECK(step["ranks"] == 10);
  CHECK(step["rows"].size() == 8);
  CHECK(step["spans"].size() == 9);
  // The lowest rank keeps even narrow spans, because the curve of memory over the step needs them.
  CHECK(step["spans"][1] == json{0, 1, 200.0, 1.0, "narrow", "work", 7.0});
  for (int i = 0; i < 100'000; ++i) events.push_back(span("more", "work", 0, 1, i / 100.0, 0.01));
  CHECK(page::timeline_of({{"traceEvents", events}})["spans"].size() <= 40'000);
}

TEST_CASE("report: a run that has not ended, a foreign trace, broken and missing files") {
  const TemporaryFolder folder;
  const auto run = write_run(folder, "cut", 1e-3);
  std::filesystem::remove(run / "metrics.json");
  folder.write("cut/steps.jsonl", steps(2, 4) + R"({"step": 3, "lo)");
  folder.write("cut/trace.json", R"({"traceEvents": [{"ph": "X", "pid": "seven"}]})");
  const auto report = data_in(TemporaryFolder::read(page::write_report(run)));
  CHECK(report["metrics"].empty());
  CHECK(report["timeline"].is_null());
  CHECK(has(report["timeline_note"], "events of another form"));
  CHECK(page::read_run(run).steps == 2);
  folder.write("cut/trace.json", "{");
  CHECK(has(TemporaryFolder::read(page::write_report(run)), "is not a Chrome trace"));
  folder.write("cut/metrics.json", R"({"mfu": 0.5, "deep": )" + std::string(500'000, '[') +
                                       std::string(500'000, ']') + "}");
  CHECK(page::report_of(page::read_run(run))["metrics"]["mfu"] == 0.5);
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
  for (const char* part : {"first", "100 k", "25 MB", "40 %", "1.172"}) {
    CAPTURE(part);
    CHECK(has(text, part));
  }
  CHECK(count(text, "*") == 0);  // no figure is best: all are equal
  CHECK(page::runs_at(folder.path()) ==
        std::vector{folder.path() / "first", folder.path() / "second"});
  CHECK(page::runs_at(folder.path() / "first/").size() == 1);
  CHECK_FALSE(has(text, "was resumed"));
  CHECK(has(text, "settings that differ\n  lr"));
  CHECK_FALSE(has(text, "strategy"));
  CHECK_FALSE(has(text, "plan"));
  CHECK(count(text, "\n") < 20);
  const auto shown = page::comparison_of(runs);
  CHECK(shown["runs"][1]["name"] == "second");
  CHECK(shown["runs"][1]["curves"]["mfu"]["y"][9] == 0.25);
  CHECK(shown["runs"][1]["curves"]["loss"]["y"][9] > 0.4);  // smoothed, so above the last
  CHECK(shown["settings"] == json{{{"name", "lr"}, {"cells", {"0.001", "0.0005"}}, {"best", 2}}});
  CHECK(shown["figures"][0]["cells"][0] == "1.172");
  CHECK(shown["notes"].empty());

  // For a resumed run, metrics.json counts only the 4 steps since then.
  write_run(folder, "third", 1e-3);
  folder.write("third/steps.jsonl", steps(10, 2));
  folder.write("third/metrics.json",
               json{{"run_name", "third"}, {"steps", 4}, {"mfu", 0.5}}.dump());
  runs.push_back(page::read_run(folder.path() / "third"));
  const std::string note =
      "third was resumed: its speeds, memory and duration are those of 4 of its 10 steps";
  const auto resumed = page::compare_text(runs);
  CHECK(has(resumed, note + "\n"));
  CHECK(has(resumed, "0.5858*"));  // the mean of 2 / i for the steps i = 1 to 10
  CHECK(page::comparison_of(runs)["notes"] == json{note});
}

TEST_CASE("warnings: each has evidence and remedy") {
  const auto ids = [](const json& args, const json& metrics) {
    std::string all;
    for (const auto& trap : train::find_warnings(args, metrics)) {
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
    return train::find_warnings(json::object(), metrics)[0].remedy;
  };
  CHECK(has(remedy({{"mfu", 0.1}, {"steps_per_s", 1.0}, {"data_wait_s", 0.5}}), "data"));
  CHECK(has(remedy({{"mfu", 0.1}, {"exposed_comm_fraction", 0.5}}), "communication"));
  // No content of the files makes the page fail.
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
      (void)html::document(page::report_of(run));
      (void)page::compare_text({run, run});
      (void)page::comparison_of({run, run});
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

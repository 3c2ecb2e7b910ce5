#include "page/run_files.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "fail.hpp"
#include "json_reader.hpp"

namespace train::page {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
// A larger trace would take gigabytes as parsed JSON.
constexpr std::uintmax_t largest_trace = 256U << 20U;
// Each column has a value for each step, so a new key in every line would take quadratic memory.
constexpr std::size_t most_columns = 1'000;

json object_of(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return json::object();
  // Values nested deeper than 32 are left out, because reading them could exhaust the stack.
  const auto is_shallow = [](int depth, json::parse_event_t, const json&) { return depth < 32; };
  std::ifstream in(file, std::ios::binary);
  auto value = json::parse(in, is_shallow, false);
  if (!value.is_object()) {
    fail(ErrorCode::bad_data, "{}: is not a JSON object; move it away to go on without it",
         file.string());
  }
  return value;
}

// Throws if a setting that the pages use has the wrong JSON type. Others are shown as they are.
void check_settings(const JsonReader& args) {
  (void)args.boolean_or("fp8", false);
  (void)args.number_or("world_size", 0);
  for (const char* key : {"strategy", "mesh", "mesh_reason", "dtype", "reduce_dtype", "recompute",
                          "pad_to", "trace"}) {
    (void)args.text_or(key, "");
  }
  if (!args.present("plan")) return;
  const JsonReader plan = args.object("plan");
  for (const char* key : {"replicate", "shard"}) {
    if (plan.present(key)) (void)plan.integer_in(key, 1, 1 << 20);
  }
  if (plan.present("order")) (void)plan.list("order");
  if (plan.present("memory")) (void)plan.object("memory");
  if (plan.present("findings")) (void)plan.objects("findings");
  if (plan.present("islands") &&
      !std::ranges::all_of(plan.list("islands"), [](const json& one) { return one.is_array(); })) {
    plan.complain("islands", "is not a list of lists");
  }
  if (!plan.present("hosts")) return;
  for (const JsonReader& host : plan.objects("hosts")) {
    (void)host.text_or("name", "");
    if (host.present("ranks")) (void)host.list("ranks");
  }
}

void read_steps(const fs::path& file, RunFiles& run) {
  std::ifstream in(file);
  std::int64_t lines = 0;
  for (std::string line; std::getline(in, line);) {
    ++lines;
    const auto record = json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("step")) continue;
    for (const auto& [name, value] : record.items()) {
      const bool flag = value.is_boolean();
      if (!flag && !value.is_number()) continue;
      auto& column = run.columns[name];
      if (run.columns.size() > most_columns) {
        fail(ErrorCode::bad_data,
             "{}: line {}: the file has more than {} different keys up to this line; a run of "
             "atoll-train writes fewer",
             file.string(), lines, most_columns);
      }
      column.resize(run.steps, nan);
      column.push_back(flag ? static_cast<double>(value.get<bool>()) : value.get<double>());
    }
    ++run.steps;
  }
  for (auto& [name, column] : run.columns) column.resize(run.steps, nan);
}

}  // namespace

double number(const json& object, std::string_view name) {
  const auto found = object.find(std::string(name));
  return found != object.end() && found->is_number() ? found->get<double>() : nan;
}

std::string plain(const json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::vector<double> RunFiles::column(const std::string& key) const {
  const auto found = columns.find(key);
  return found == columns.end() ? std::vector<double>(steps, nan) : found->second;
}

bool RunFiles::has(const std::string& key) const {
  const auto found = columns.find(key);
  return found != columns.end() &&
         std::ranges::any_of(found->second, [](double value) { return std::isfinite(value); });
}

double RunFiles::metric(std::string_view key) const { return number(metrics, key); }

std::string folder_name(const fs::path& folder) {
  std::error_code ignored;
  const fs::path clean = fs::absolute(folder, ignored).lexically_normal();
  return (clean.has_filename() ? clean : clean.parent_path()).filename().string();
}

std::vector<fs::path> runs_at(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> runs;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    if (fs::is_regular_file(entry->path() / "steps.jsonl", ignored)) runs.push_back(entry->path());
  }
  std::ranges::sort(runs);
  // A folder with steps.jsonl is one run, even if it contains the folders of earlier runs.
  if (runs.empty() || fs::is_regular_file(folder / "steps.jsonl", ignored)) return {folder};
  return runs;
}

RunFiles read_run(const fs::path& folder) {
  RunFiles run;
  run.folder = folder;
  const fs::path steps = folder / "steps.jsonl";
  std::error_code ignored;
  if (!fs::is_regular_file(steps, ignored)) {
    fail(ErrorCode::not_found,
         "{}: has no steps.jsonl; name the results folder of a run, which --out sets",
         folder.string());
  }
  read_steps(steps, run);
  run.args = object_of(folder / "run_args.json");
  check_settings(JsonReader(run.args, (folder / "run_args.json").string()));
  run.metrics = object_of(folder / "metrics.json");
  const auto named = run.metrics.find("run_name");
  run.name = named != run.metrics.end() && named->is_string() ? named->get<std::string>()
                                                              : folder_name(folder);
  return run;
}

void read_trace(RunFiles& run) {
  const std::string named = plain(run.args.value("trace", json()));
  if (named.empty()) {
    run.trace_note = "No trace: start the run with --trace FILE.";
    return;
  }
  std::error_code error;
  fs::path file = named;
  // If the folder was copied from another machine, the trace is looked for in the copy.
  if (!fs::is_regular_file(file, error)) file = run.folder / file.filename();
  const auto bytes = fs::file_size(file, error);
  if (error) {
    run.trace_note = "The trace " + named + " does not exist any more.";
  } else if (bytes > largest_trace) {
    run.trace_note = "The trace " + named + " is too large for this page: open it in Perfetto.";
  } else {
    std::ifstream in(file, std::ios::binary);
    run.trace = json::parse(in, nullptr, false);
    const bool fine = run.trace.is_object() && run.trace.contains("traceEvents") &&
                      run.trace["traceEvents"].is_array();
    if (fine) return;
    run.trace = nullptr;
    run.trace_note = "The trace " + named + " is not a Chrome trace.";
  }
}

}  // namespace train::page

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "page/page.hpp"

namespace train::page {
namespace {

using nlohmann::json;

std::string scaled(double value, std::string_view unit) {
  constexpr std::array<std::pair<double, std::string_view>, 4> scales{
      {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  for (const auto& [scale, letter] : scales) {
    if (std::abs(value) >= scale) return fmt::format("{:.3g} {}{}", value / scale, letter, unit);
  }
  return fmt::format("{:.3g}{}{}", value, unit.empty() ? "" : " ", unit);
}

// How figures are written: 0.00123, 12.3 k, 65.3 MB, 31.2 %, 12.3 s.
std::string number_text(double value) { return fmt::format("{:.4g}", value); }
std::string count_text(double value) { return scaled(value, ""); }
std::string bytes_text(double value) { return scaled(value, "B"); }
std::string share_text(double value) { return fmt::format("{:.3g} %", 100 * value); }
std::string seconds_text(double value) {
  return value >= 600 ? fmt::format("{:.3g} min", value / 60) : fmt::format("{:.3g} s", value);
}

struct Figure {
  const char* key;
  const char* name;
  std::string (*text)(double);
  int better;  // 1: more is better; -1: less is better; 0: neither
};

constexpr std::array<Figure, 10> figures{
    {{"loss_last", "loss, last 20 steps", number_text, -1},
     {"eval_loss_min", "best evaluation", number_text, -1},
     {"tokens_per_s", "tokens per second", count_text, 1},
     {"mfu", "MFU", share_text, 1},
     {"exposed_comm_fraction", "exposed communication", share_text, -1},
     {"padding_fraction", "padding", share_text, -1},
     {"device_memory_bytes", "memory per rank, peak", bytes_text, -1},
     {"steps", "steps", number_text, 0},
     {"nonfinite_steps", "steps not finite", number_text, -1},
     {"wall_time_s", "duration", seconds_text, 0}}};

struct Row {
  std::string name;
  std::vector<std::string> cells;
  std::size_t best;  // index of the best cell; the number of runs if no cell is best
};

// Not compared: paths and the port, which do not affect training, and what follows from others.
const std::set<std::string> places{"plan",         "trace",       "export",         "resume",
                                   "metrics_port", "mesh_reason", "strategy_reason"};

std::string cell(const RunFiles& run, const std::string& name) {
  const auto found = run.args.find(name);
  const std::string text = found == run.args.end() ? "" : plain(*found);
  return text.empty() ? "-" : text;
}

// The mean of the last 20 finite values of a column; NaN if it has none.
double mean_of_last(const std::vector<double>& column) {
  constexpr double most = 20;
  double sum = 0, count = 0;
  for (auto value = column.rbegin(); value != column.rend() && count < most; ++value) {
    if (!std::isfinite(*value)) continue;
    sum += *value;
    ++count;
  }
  return sum / count;
}

// A figure of a run. For a resumed run, steps.jsonl has the steps of all starts, metrics.json only
// those of the last start, so losses come from steps.jsonl.
double value_of(const Figure& figure, const RunFiles& run) {
  const std::string_view key = figure.key;
  if (key == "steps") return static_cast<double>(run.steps);
  if (key == "loss_last") return mean_of_last(run.column("loss"));
  if (key != "eval_loss_min") return run.metric(key);
  double least = run.metric(key);
  for (const double loss : run.column("eval_loss")) least = std::fmin(least, loss);
  return least;
}

// Returns a note for each run whose metrics.json counts fewer steps than steps.jsonl has.
std::vector<std::string> notes_on(const std::vector<RunFiles>& runs,
                                  const std::vector<std::string>& names) {
  std::vector<std::string> notes;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double measured = runs[i].metric("steps");
    const auto all = static_cast<double>(runs[i].steps);
    if (!std::isfinite(measured) || measured >= all) continue;
    notes.push_back(
        fmt::format("{} was resumed: its speeds, memory and duration are those of {:.0f} of its "
                    "{:.0f} steps",
                    names[i], measured, all));
  }
  return notes;
}

Row row_of(const Figure& figure, const std::vector<RunFiles>& runs) {
  Row row{figure.name, {}, runs.size()};
  double best = 0;
  bool differ = false;
  int known = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double value = value_of(figure, runs[i]);
    row.cells.push_back(std::isfinite(value) ? figure.text(value) : "-");
    differ = differ || row.cells[i] != row.cells[0];
    if (!std::isfinite(value) || figure.better == 0) continue;
    ++known;
    if (row.best < runs.size() && figure.better * value <= figure.better * best) continue;
    best = value;
    row.best = i;
  }
  if (!differ || known < 2) row.best = runs.size();
  return row;
}

bool is_empty(const Row& row) {
  return std::ranges::all_of(row.cells, [](const std::string& text) { return text == "-"; });
}

std::vector<Row> figure_rows(const std::vector<RunFiles>& runs) {
  std::vector<Row> rows;
  for (const Figure& figure : figures) {
    Row row = row_of(figure, runs);
    if (!is_empty(row)) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Row> setting_rows(const std::vector<RunFiles>& runs) {
  std::set<std::string> names;
  for (const RunFiles& run : runs) {
    for (const auto& [name, value] : run.args.items()) {
      if (!places.contains(name)) names.insert(name);
    }
  }
  std::vector<Row> rows;
  for (const std::string& name : names) {
    Row row{name, {}, runs.size()};
    for (const RunFiles& run : runs) row.cells.push_back(cell(run, name));
    const bool same = std::ranges::all_of(
        row.cells, [&](const std::string& text) { return text == row.cells[0]; });
    if (!same) rows.push_back(std::move(row));
  }
  return rows;
}

// Titles of the runs: the names of their folders, or the paths of folders with the same name.
std::vector<std::string> titles(const std::vector<RunFiles>& runs) {
  std::map<std::string, int> times;
  for (const RunFiles& run : runs) ++times[folder_name(run.folder)];
  std::vector<std::string> all;
  for (const RunFiles& run : runs) {
    const std::string name = folder_name(run.folder);
    all.push_back(times[name] == 1 ? name : run.folder.string());
  }
  return all;
}

std::string line_of(const Row& row, const std::vector<std::size_t>& widths) {
  std::string line = fmt::format("{:<{}}", row.name, widths[0]);
  for (std::size_t i = 0; i < row.cells.size(); ++i) {
    line += fmt::format("  {:>{}}{}", row.cells[i], widths[i + 1], row.best == i ? '*' : ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

json to_json(const std::vector<Row>& rows) {
  json all = json::array();
  for (const Row& row : rows)
    all.push_back({{"name", row.name}, {"cells", row.cells}, {"best", row.best}});
  return all;
}

// The curves of all runs, which the page draws over one another. The page smooths the curves that
// vary from step to step.
json curves_of(const RunFiles& run) {
  json curves = json::object();
  for (const char* key : {"eval_loss", "tokens_per_s", "mfu", "exposed_comm_fraction"}) {
    if (run.has(key)) curves[key] = curve_of(run, run.column(key));
  }
  for (const char* key : {"loss", "grad_norm"}) {
    if (run.has(key)) curves[key] = curve_of(run, smoothed(run.column(key), 10));
  }
  return curves;
}

}  // namespace

std::string compare_text(const std::vector<RunFiles>& runs) {
  const auto names = titles(runs);
  std::vector<Row> rows{{"", names, runs.size()}};
  for (Row& row : figure_rows(runs)) rows.push_back(std::move(row));
  const auto settings = setting_rows(runs);
  if (!settings.empty()) {
    rows.push_back({"settings that differ", std::vector<std::string>(runs.size()), runs.size()});
    for (const Row& row : settings) rows.push_back({"  " + row.name, row.cells, runs.size()});
  }
  std::vector<std::size_t> widths(runs.size() + 1, 0);
  for (const Row& row : rows) {
    widths[0] = std::max(widths[0], row.name.size());
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      widths[i + 1] = std::max(widths[i + 1], row.cells[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) text += line_of(row, widths);
  const bool has_best =
      std::ranges::any_of(rows, [&](const Row& row) { return row.best < runs.size(); });
  if (has_best) text += "* best of the runs\n";
  for (const std::string& note : notes_on(runs, names)) text += note + "\n";
  return text;
}

json comparison_of(const std::vector<RunFiles>& runs) {
  const auto names = titles(runs);
  json shown = json::array();
  for (std::size_t i = 0; i < runs.size(); ++i)
    shown.push_back({{"name", names[i]}, {"curves", curves_of(runs[i])}});
  return {{"kind", "compare"},
          {"title", "Comparison of runs"},
          {"runs", std::move(shown)},
          {"figures", to_json(figure_rows(runs))},
          {"settings", to_json(setting_rows(runs))},
          {"notes", notes_on(runs, names)}};
}

}  // namespace train::page

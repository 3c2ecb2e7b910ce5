#include "page/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "page/line_chart.hpp"
#include "page/style.hpp"
#include "page/text.hpp"

namespace train::page {
namespace {

using nlohmann::json;

struct Figure {
  const char* key;
  const char* name;
  Unit unit;
  enum class Better {
    low,
    high,
    none
  } better;
};

using Better = Figure::Better;
constexpr std::array<Figure, 10> figures{
    {{"loss_last", "loss, last 20 steps", Unit::number, Better::low},
     {"eval_loss_min", "best evaluation", Unit::number, Better::low},
     {"tokens_per_s", "tokens per second", Unit::count, Better::high},
     {"mfu", "MFU", Unit::share, Better::high},
     {"exposed_comm_fraction", "exposed communication", Unit::share, Better::low},
     {"padding_fraction", "padding", Unit::share, Better::low},
     {"device_memory_bytes", "memory per rank, peak", Unit::bytes, Better::low},
     {"steps", "steps", Unit::number, Better::none},
     {"nonfinite_steps", "steps not finite", Unit::number, Better::low},
     {"wall_time_s", "duration", Unit::seconds, Better::none}}};

struct Row {
  std::string name;
  std::vector<std::string> cells;
  std::size_t best;  // index of the best cell, or the number of runs
};

// Places of results differ between any two runs, and say nothing about them.
const std::set<std::string> places{"plan",         "trace",       "export",          "resume",
                                   "metrics_port", "mesh_reason", "strategy_reason", "products"};

std::string cell(const RunFiles& run, const std::string& name) {
  const auto found = run.args.find(name);
  if (found == run.args.end()) return "-";
  const std::string text = found->is_string() ? found->get<std::string>() : found->dump();
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

// A figure of a run. A run that was resumed has the steps of all its starts in steps.jsonl, and
// those of the last one in metrics.json.
double value_of(const Figure& figure, const RunFiles& run) {
  const std::string_view key = figure.key;
  if (key == "steps") return static_cast<double>(run.steps);
  if (key == "loss_last") return mean_of_last(run.column("loss"));
  if (key != "eval_loss_min") return run.metric(key);
  double least = run.metric(key);
  for (const double loss : run.column("eval_loss")) least = std::fmin(least, loss);
  return least;
}

// Names the runs of which some figures count only a part of the steps.
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
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double value = value_of(figure, runs[i]);
    row.cells.push_back(format(value, figure.unit));
    differ = differ || row.cells[i] != row.cells[0];
    if (!std::isfinite(value) || figure.better == Better::none) continue;
    const bool wins = figure.better == Better::low ? value < best : value > best;
    if (row.best < runs.size() && !wins) continue;
    best = value;
    row.best = i;
  }
  if (!differ) row.best = runs.size();
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

// Names of runs, or their folders where names are equal.
std::vector<std::string> titles(const std::vector<RunFiles>& runs) {
  std::map<std::string, int> times;
  for (const RunFiles& run : runs) ++times[run.name];
  std::vector<std::string> all;
  for (const RunFiles& run : runs) {
    all.push_back(times[run.name] == 1 ? run.name : run.folder.string());
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

std::string html_rows(const std::vector<Row>& rows) {
  std::string html;
  for (const Row& row : rows) {
    html += "<tr><th>" + escape(row.name) + "</th>";
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const char* tag = row.best == i ? "b" : "span";
      html += fmt::format("<td><{0}>{1}</{0}></td>", tag, escape(row.cells[i]));
    }
    html += "</tr>";
  }
  return html;
}

std::string overlaid(const std::vector<RunFiles>& runs, LineChart chart, const std::string& key,
                     double window) {
  const auto names = titles(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].has(key)) continue;
    const auto values = runs[i].column(key);
    const bool few = key == "eval_loss";
    chart.series.push_back({names[i], static_cast<int>(i % 8) + 1,
                            few ? Series::Look::dots : Series::Look::line, runs[i].column("step"),
                            window > 1 ? smoothed(values, window) : values});
  }
  return draw(chart);
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
  text += "* best of the runs\n";
  for (const std::string& note : notes_on(runs, names)) text += note + "\n";
  return text;
}

std::string compare_html(const std::vector<RunFiles>& runs) {
  std::string heads = "<tr><th></th>";
  const auto names = titles(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    heads +=
        fmt::format(R"(<td><i class="key c{}"></i><b>{}</b></td>)", i % 8 + 1, escape(names[i]));
  }
  std::string body = fmt::format(
      R"(<header><div><h1>{} runs compared</h1><p class="sub">Bold: the best of the runs.</p>)"
      R"(</div><button id="theme">light / dark</button></header>)",
      runs.size());
  body += R"(<h2>Figures</h2><div class="card scroll"><table>)" + heads + "</tr>" +
          html_rows(figure_rows(runs)) + "</table></div>";
  for (const std::string& note : notes_on(runs, names))
    body += R"(<p class="sub">)" + escape(note) + "</p>";
  if (const auto rows = setting_rows(runs); !rows.empty()) {
    body += R"(<h2>Settings that differ</h2><div class="card scroll"><table>)" + heads + "</tr>" +
            html_rows(rows) + "</table></div>";
  }
  body += R"(<h2>Curves</h2><div class="grid2">)";
  body += overlaid(runs, {.title = "Loss", .note = "smoothed"}, "loss", 10);
  body += overlaid(runs, {.title = "Evaluation loss"}, "eval_loss", 1);
  body += overlaid(runs, {.title = "Tokens per second", .unit = Unit::count, .from_zero = true},
                   "tokens_per_s", 1);
  body += overlaid(runs, {.title = "MFU", .unit = Unit::share, .from_zero = true}, "mfu", 1);
  body += overlaid(runs, {.title = "Exposed communication", .unit = Unit::share, .from_zero = true},
                   "exposed_comm_fraction", 1);
  body += overlaid(runs, {.title = "Gradient norm", .logarithmic = true}, "grad_norm", 10);
  return document("Comparison of runs", body + "</div>");
}

}  // namespace train::page

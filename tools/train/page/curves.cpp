#include "page/curves.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "page/line_chart.hpp"

namespace train::page {
namespace {

// Fewer steps show their course without smoothing.
constexpr std::size_t fewest_smoothed = 40;

struct Column {
  const char* key;
  const char* name;
  int colour;
};

// Links without any traffic, such as the network of a single host, need no chart.
bool is_rate_of_nothing(const RunFiles& run, std::string_view key) {
  const auto values = run.column(std::string(key));
  const bool is_link = key.ends_with("_sent_per_s") || key.ends_with("_received_per_s");
  return is_link && std::ranges::none_of(values, [](double value) { return value > 0; });
}

// Draws the columns that the run has.
std::string draw_columns(const RunFiles& run, LineChart chart, const std::vector<Column>& columns) {
  const auto steps = run.column("step");
  for (const Column& column : columns) {
    if (!run.has(column.key) || is_rate_of_nothing(run, column.key)) continue;
    chart.series.push_back(
        {column.name, column.colour, Series::Look::line, steps, run.column(column.key)});
  }
  return draw(chart);
}

std::string loss(const RunFiles& run) {
  const auto steps = run.column("step"), losses = run.column("loss");
  LineChart chart{.title = "Loss", .unit = Unit::number};
  if (run.steps >= fewest_smoothed) {
    const double window = std::clamp(static_cast<double>(run.steps) / 20, 5.0, 100.0);
    chart.series.push_back(
        {"training, smoothed", 1, Series::Look::line, steps, smoothed(losses, window)});
    chart.series.push_back({"training", 1, Series::Look::faint, steps, losses});
  } else {
    chart.series.push_back({"training", 1, Series::Look::line, steps, losses});
  }
  if (run.has("eval_loss")) {
    chart.series.push_back({"evaluation", 8, Series::Look::dots, steps, run.column("eval_loss")});
  }
  const auto bad = run.column("nonfinite");
  for (std::size_t i = 0; i < bad.size(); ++i) {
    if (bad[i] == 1) chart.marks.push_back(steps[i]);
  }
  chart.marks_name = "steps with an infinite or NaN loss or gradient norm";
  return draw(chart);
}

}  // namespace

std::string learning_curves(const RunFiles& run) {
  return loss(run) +
         draw_columns(run,
                      {.title = "Gradient norm", .note = "before clipping", .logarithmic = true},
                      {{"grad_norm", "gradient norm", 5}}) +
         draw_columns(run, {.title = "Learning rate", .from_zero = true},
                      {{"learning_rate", "learning rate", 2}});
}

std::string speed_curves(const RunFiles& run) {
  return draw_columns(run,
                      {.title = "Tokens per second",
                       .note = "over all ranks, without padding",
                       .unit = Unit::count,
                       .from_zero = true},
                      {{"tokens_per_s", "tokens per second", 1}}) +
         draw_columns(run,
                      {.title = "MFU",
                       .note = "the model's FLOPs divided by the machine's peak",
                       .unit = Unit::share,
                       .from_zero = true},
                      {{"mfu", "MFU", 2}}) +
         draw_columns(run,
                      {.title = "Time of a step",
                       .note = "exposed: compute waited for communication",
                       .unit = Unit::seconds,
                       .from_zero = true},
                      {{"seconds", "whole step", 3},
                       {"compute_s", "compute", 1},
                       {"exposed_s", "exposed, mean of ranks", 8},
                       {"exposed_worst_s", "exposed, worst rank", 5}}) +
         draw_columns(run,
                      {.title = "Exposed communication",
                       .note = "share of a step's time",
                       .unit = Unit::share,
                       .from_zero = true},
                      {{"exposed_comm_fraction", "exposed share", 8}}) +
         draw_columns(run,
                      {.title = "Use of processors",
                       .note = "mean over the ranks' machines",
                       .unit = Unit::share,
                       .from_zero = true},
                      {{"cpu_machine", "CPUs, all programs", 1},
                       {"cpu_ranks", "CPUs, all ranks", 2},
                       {"gpu_busy", "GPUs", 5},
                       {"memory_used_fraction", "memory in use, fullest machine", 3}}) +
         draw_columns(
             run,
             {.title = "Network",
              .note = "largest of all machines: interfaces and RDMA ports, without loopback",
              .unit = Unit::bytes_per_s,
              .from_zero = true},
             {{"network_sent_per_s", "sent", 1}, {"network_received_per_s", "received", 8}}) +
         draw_columns(run,
                      {.title = "Links of GPUs",
                       .note = "largest of all GPUs; PCIe is counted from Hopper on",
                       .unit = Unit::bytes_per_s,
                       .from_zero = true},
                      {{"nvlink_sent_per_s", "NVLink sent", 1},
                       {"nvlink_received_per_s", "NVLink received", 8},
                       {"pcie_sent_per_s", "PCIe sent", 2},
                       {"pcie_received_per_s", "PCIe received", 5}});
}

}  // namespace train::page

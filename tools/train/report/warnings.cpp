#include "report/warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

namespace train {
namespace {

using nlohmann::json;

// Above this fraction of padding, most compute is spent on padding.
constexpr double most_padding = 0.5;
// Below this MFU, something other than compute limits the step.
constexpr double least_mfu = 0.30;

std::optional<double> number(const json& object, std::string_view name) {
  const auto found = object.find(std::string(name));
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::string text(const json& object, std::string_view name) {
  const auto found = object.find(std::string(name));
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<std::size_t> rank_of(const json& value, std::size_t ranks) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto rank = value.get<std::int64_t>();
  if (rank < 0 || rank >= static_cast<std::int64_t>(ranks)) return std::nullopt;
  return static_cast<std::size_t>(rank);
}

// Returns the index of each rank's island (GPUs joined by NVLink or xGMI); empty if it is unknown.
std::vector<std::size_t> island_of_ranks(const json& islands, std::size_t ranks) {
  std::vector<std::size_t> island(ranks, islands.size());
  for (std::size_t i = 0; i < islands.size(); ++i) {
    if (!islands[i].is_array()) return {};
    for (const json& rank : islands[i]) {
      const auto at = rank_of(rank, ranks);
      if (!at) return {};
      island[*at] = i;
    }
  }
  return island;
}

// Returns the maximum number of islands that one shard group spans; 0 if the plan does not say.
std::size_t islands_per_group(const json& plan) {
  const auto shard = static_cast<std::size_t>(number(plan, "shard").value_or(0));
  const json order = plan.value("order", json::array());
  const json islands = plan.value("islands", json::array());
  if (shard == 0 || !order.is_array() || !islands.is_array()) return 0;
  const auto island = island_of_ranks(islands, order.size());
  std::size_t most = 0;
  for (std::size_t first = 0; first + shard <= order.size(); first += shard) {
    std::set<std::size_t> seen;
    for (std::size_t i = first; i < first + shard; ++i) {
      const auto at = rank_of(order[i], island.size());
      if (!at) return 0;
      seen.insert(island[*at]);
    }
    most = std::max(most, seen.size());
  }
  return most;
}

void check_sharding(const json& args, std::vector<RunWarning>& warnings) {
  const json plan = args.value("plan", json::object());
  if (!plan.is_object()) return;
  const std::size_t spanned = islands_per_group(plan);
  const std::string strategy = text(args, "strategy");
  // Hybrid strategies get no warning here: they shard over the mesh's shard axis, and the mesh
  // check reports a shard axis that spans islands.
  if (spanned > 1 && !strategy.starts_with("hybrid")) {
    warnings.push_back(
        {"shard_across_islands",
         fmt::format("{} shards over {} islands, so every gather and reduction crosses the slow "
                     "links between them",
                     strategy, spanned),
         "use --strategy hybrid_shard, which shards inside islands, if a shard then fits the "
         "memory; else hybrid_shard with --recompute full"});
  }
  for (const json& finding : plan.value("findings", json::array())) {
    if (!finding.is_object()) continue;
    warnings.push_back({"mesh_" + text(finding, "id"),
                        fmt::format("mesh {}: {}; {}", text(args, "mesh"),
                                    text(finding, "evidence"), text(finding, "consequence")),
                        text(finding, "fix")});
  }
}

void check_settings(const json& args, std::vector<RunWarning>& warnings) {
  if (text(args, "reduce_dtype") == "bf16") {
    warnings.push_back(
        {"reduce_bf16",
         "gradients are reduced in bf16, so each axis rounds their sum to 8 bits, and "
         "small contributions of many ranks vanish",
         "use --reduce-dtype f32, unless a run with it gave the same curve"});
  }
}

// Returns a remedy for the most likely cause of a low MFU.
std::string remedy_of_mfu(const json& args, const json& metrics) {
  const double step = 1 / number(metrics, "steps_per_s").value_or(1);
  if (number(metrics, "data_wait_s").value_or(0) > 0.1 * step) {
    return "steps wait for data: convert the data with atoll-data, or read it from a faster disk";
  }
  if (number(metrics, "exposed_comm_fraction").value_or(0) > 0.2) {
    const bool hybrid = text(args, "strategy").starts_with("hybrid");
    return fmt::format(
        "compute waits for communication: raise --micro-batch or --global-batch, so that a gather "
        "serves more tokens; then --prefetch 2, or {} if memory allows",
        hybrid ? "hybrid_shard_grad" : "hybrid_shard");
  }
  if (text(args, "recompute") == "full") {
    return "--recompute full repeats the forward pass: use selective or none if memory allows";
  }
  return fmt::format(
      "raise {}, so that matrices are larger; on GPUs use --dtype bf16; --trace FILE shows where a "
      "step spends its time",
      text(args, "pad_to") == "pack" ? "--global-batch and --micro-batch"
                                     : "--micro-batch or use --pad-to pack");
}

void check_figures(const json& args, const json& metrics, std::vector<RunWarning>& warnings) {
  const auto padding = number(metrics, "padding_fraction");
  if (padding && *padding > most_padding) {
    warnings.push_back(
        {"padding", fmt::format("{:.0f} % of the computed positions are padding", 100 * *padding),
         text(args, "pad_to") == "seq" ? "use --pad-to pack, or at least longest"
         : text(args, "pad_to") == "pack"
             ? "the samples of a step fill few rows: lower --seq, or raise --global-batch"
             : "use --pad-to pack, which fills rows with several samples"});
  }
  const auto mfu = number(metrics, "mfu");
  if (mfu && *mfu < least_mfu) {
    warnings.push_back({"mfu", fmt::format("MFU is {:.1f} %, below 30 %", 100 * *mfu),
                        remedy_of_mfu(args, metrics)});
  }
  const auto last = number(metrics, "eval_loss"), least = number(metrics, "eval_loss_min");
  if (last && least && *last > 1.05 * *least) {
    warnings.push_back(
        {"overfitting",
         fmt::format("the evaluation's loss rose from {:.4g} to {:.4g}", *least, *last),
         "train fewer steps, with a lower --lr, or on more data"});
  }
  const auto bad = number(metrics, "nonfinite_steps");
  if (bad && *bad > 0) {
    warnings.push_back(
        {"nonfinite",
         fmt::format("in {:.0f} steps the loss or gradient norm was infinite or NaN", *bad),
         "lower --lr or lengthen --warmup-steps; the log names the first tensor"});
  }
}

}  // namespace

std::vector<RunWarning> find_warnings(const json& args, const json& metrics) {
  std::vector<RunWarning> warnings;
  check_sharding(args, warnings);
  check_settings(args, warnings);
  check_figures(args, metrics, warnings);
  return warnings;
}

std::string to_line(const RunWarning& trap) { return trap.evidence + "; " + trap.remedy; }

}  // namespace train

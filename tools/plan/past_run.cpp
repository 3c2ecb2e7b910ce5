#include "plan/past_run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/mesh.hpp"
#include "fail.hpp"
#include "json_reader.hpp"

namespace plan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t most_past_ranks = 1 << 16;

std::optional<double> number(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const auto value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// Adds padded tokens to the tokens/s, because a prediction counts them as well.
Measurement measurement(const json& metrics, const fs::path& file) {
  const auto real = number(metrics, "tokens_per_s");
  if (!real) {
    train::fail(atoll::ErrorCode::bad_data,
                "{}: no metrics of atoll-train: \"tokens_per_s\" is missing", file.string());
  }
  const auto check = [&](const char* key, double least, double most) {
    const auto value = number(metrics, key);
    if (!value || (*value >= least && *value <= most)) return;
    train::fail(atoll::ErrorCode::bad_data, "{}: `{}` is {}, and must be {}", file.string(), key,
                *value,
                most == 1   ? "between 0 and 1"
                : least > 0 ? "above 0"
                            : "at least 0");
  };
  constexpr double any = std::numeric_limits<double>::max();
  check("tokens_per_s", std::numeric_limits<double>::min(), any);
  for (const char* key :
       {"padded_tokens_per_s", "steps_per_s", "exposed_s", "data_wait_s", "enqueue_s"})
    check(key, 0, any);
  check("padding_fraction", 0, 1);
  return {.tokens_per_s = *real + number(metrics, "padded_tokens_per_s").value_or(0),
          .exposed_s = number(metrics, "exposed_s"),
          .padding = number(metrics, "padding_fraction"),
          .data_wait_s = number(metrics, "data_wait_s"),
          .enqueue_s = number(metrics, "enqueue_s"),
          .is_atoll = true};
}

// Reads the number of hosts, or of the islands of --islands, and the ranks of each. All hosts must
// have the same number of ranks.
void read_hosts(const train::JsonReader& args, RunSettings& settings) {
  const std::int64_t ranks = args.integer_in("world_size", 1, most_past_ranks);
  std::vector<std::size_t> of_host;
  for (const auto& host : args.object("plan").objects("hosts")) {
    of_host.push_back(host.list("ranks").size());
  }
  const std::int64_t islands = args.integer_or("islands", 0);
  const std::int64_t hosts = islands > 0 ? islands : static_cast<std::int64_t>(of_host.size());
  const bool is_even = std::ranges::adjacent_find(of_host, std::not_equal_to()) == of_host.end();
  if (hosts < 1 || ranks % hosts != 0 || !is_even) {
    train::fail(atoll::ErrorCode::bad_data,
                "{}: the {} hosts of the run have different numbers of ranks; atoll-plan cannot "
                "predict such runs",
                args.file(), hosts);
  }
  settings.hosts = static_cast<int>(hosts);
  settings.ranks_per_host = static_cast<int>(ranks / hosts);
}

// Returns a text that is one of `values`.
std::string one_of(const train::JsonReader& args, const char* key,
                   const std::vector<std::string_view>& values) {
  const std::string text = args.text(key);
  if (std::ranges::find(values, text) == values.end()) {
    args.complain(key, fmt::format("is {}, and must be one of {}", train::quoted(text),
                                   fmt::join(values, ", ")));
  }
  return text;
}

std::string mesh_in(const train::JsonReader& args) {
  const std::string text = args.text("mesh");
  try {
    (void)atoll::parse_mesh(text);
  } catch (const atoll::Error&) {
    args.complain("mesh", fmt::format("is {}, and must be replicate x shard, as in 2x4",
                                      train::quoted(text)));
  }
  return text;
}

RunSettings settings_in(const train::JsonReader& args) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  std::vector<std::string_view> strategies;
  for (const auto strategy : atoll::fsdp::every_strategy())
    strategies.push_back(atoll::fsdp::name(strategy));
  RunSettings settings{.model = args.text("model"),
                       .strategy = one_of(args, "strategy", strategies),
                       .mesh = mesh_in(args),
                       .dtype = one_of(args, "dtype", {"f32", "bf16"}),
                       .reduce_dtype = one_of(args, "reduce_dtype", {"f32", "bf16"}),
                       .moments = one_of(args, "moments", {"f32", "bf16"}),
                       .recompute = one_of(args, "recompute", {"none", "selective", "full"}),
                       .prefetch = fmt::format("{}", args.integer_in("prefetch", 0, most)),
                       .seq = args.integer_in("seq", 1, most),
                       .micro_batch = args.integer_in("micro_batch", 1, most),
                       .global_batch = args.integer_in("global_batch", 1, most)};
  read_hosts(args, settings);
  const auto note = [&](const char* flag, const std::string& value, bool differs) {
    if (differs) settings.not_predicted.push_back(fmt::format("{} {}", flag, value));
  };
  const std::string optimizer =
      args.present("optimizer") ? one_of(args, "optimizer", {"adamw", "sgd", "muon"}) : "adamw";
  const std::int64_t shards = args.integer_or("secondary_shards", 0);
  const std::string base = args.text_or("lora_base", "");
  note("--optimizer", optimizer, optimizer != "adamw");
  settings.lora_rank = args.integer_or("lora_rank", 0);
  settings.fp8 = args.boolean_or("fp8", false);
  note("--lora-base", base, !base.empty());
  if (args.present("lora_targets") && !args.list("lora_targets").empty())
    settings.not_predicted.push_back("--lora-targets");
  note("--secondary-shards", std::to_string(shards), shards != 0);
  return settings;
}

}  // namespace

PastRun read_run(const fs::path& place) {
  std::error_code ignored;
  const fs::path file = fs::is_directory(place, ignored) ? place / "metrics.json" : place;
  const json metrics = train::read_object(file);
  PastRun run{.measured = measurement(metrics, file)};
  if (const auto gpu = metrics.find("gpu0"); gpu != metrics.end()) {
    run.on_cpus = gpu->is_null();
    if (gpu->is_string()) run.gpu = gpu->get<std::string>();
  }
  run.parameters = static_cast<std::int64_t>(number(metrics, "parameters").value_or(0));
  const fs::path args = file.parent_path() / "run_args.json";
  if (!fs::exists(args, ignored)) return run;
  const json settings = train::read_object(args);
  run.settings = settings_in(train::JsonReader(settings, args.string()));
  if (run.settings->lora_rank > 0) run.parameters = 0;
  const double ranks = number(metrics, "world_size").value_or(0);
  const int of_settings = run.settings->hosts * run.settings->ranks_per_host;
  if (ranks > 0 && ranks != of_settings) {
    train::fail(atoll::ErrorCode::mismatch,
                "{}: of {} ranks, but {} is of {}: they are of different runs", file.string(),
                ranks, args.filename().string(), of_settings);
  }
  const double rows =
      number(metrics, "steps_per_s").value_or(0) * static_cast<double>(run.settings->global_batch);
  if (rows > 0) {
    const double tokens = std::round(run.measured.tokens_per_s / rows);
    run.row_tokens = static_cast<std::int64_t>(
        std::clamp(tokens, 1.0, static_cast<double>(std::max<std::int64_t>(1, run.settings->seq))));
  }
  return run;
}

}  // namespace plan

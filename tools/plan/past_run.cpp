#include "plan/past_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "fail.hpp"
#include "plan/input.hpp"

namespace plan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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

// The ranks of each host, or of each island that --islands makes. All hosts must have
// the same number of ranks.
void read_hosts(const json& args, RunSettings& settings) {
  const int ranks = args.at("world_size");
  std::vector<std::size_t> of_host;
  for (const json& host : args.at("plan").at("hosts")) of_host.push_back(host.at("ranks").size());
  const int islands = args.value("islands", 0);
  settings.hosts = islands > 0 ? islands : static_cast<int>(of_host.size());
  const bool is_even = std::ranges::adjacent_find(of_host, std::not_equal_to()) == of_host.end();
  if (settings.hosts < 1 || ranks < 1 || ranks % settings.hosts != 0 || !is_even) {
    train::fail(atoll::ErrorCode::bad_data,
                "its {} hosts have different numbers of ranks, which a prediction does not support",
                settings.hosts);
  }
  settings.ranks_per_host = ranks / settings.hosts;
}

RunSettings settings_in(const json& args) {
  RunSettings settings{.model = args.at("model"),
                       .strategy = args.at("strategy"),
                       .mesh = args.at("mesh"),
                       .dtype = args.at("dtype"),
                       .reduce_dtype = args.at("reduce_dtype"),
                       .moments = args.at("moments"),
                       .recompute = args.at("recompute"),
                       .prefetch = fmt::format("{}", args.at("prefetch").get<int>()),
                       .seq = args.at("seq"),
                       .micro_batch = args.at("micro_batch"),
                       .global_batch = args.at("global_batch")};
  for (const std::int64_t size : {settings.seq, settings.micro_batch, settings.global_batch}) {
    if (size < 1) train::fail(atoll::ErrorCode::bad_data, "a size of {} is below 1", size);
  }
  read_hosts(args, settings);
  const auto note = [&](const char* flag, const json& value, bool differs) {
    if (!differs) return;
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    settings.not_predicted.push_back(fmt::format("{} {}", flag, text));
  };
  const json optimizer = args.value("optimizer", "adamw"), rank = args.value("lora_rank", 0),
             shards = args.value("inner_shards", 0), fp8 = args.value("fp8", false);
  note("--optimizer", optimizer, optimizer != "adamw");
  settings.adapters = rank != 0;
  note("--lora-rank", rank, rank != 0);
  if (fp8 == true) settings.not_predicted.push_back("--fp8");
  note("--inner-shards", shards, shards != 0);
  return settings;
}

}  // namespace

PastRun read_run(const fs::path& place) {
  std::error_code ignored;
  const fs::path file = fs::is_directory(place, ignored) ? place / "metrics.json" : place;
  const json metrics = read_object(file);
  PastRun run{.measured = measurement(metrics, file)};
  if (const auto gpu = metrics.find("gpu0"); gpu != metrics.end()) {
    run.on_cpus = gpu->is_null();
    if (gpu->is_string()) run.gpu = gpu->get<std::string>();
  }
  run.parameters = static_cast<std::int64_t>(number(metrics, "parameters").value_or(0));
  const fs::path args = file.parent_path() / "run_args.json";
  if (!fs::exists(args, ignored)) return run;
  try {
    run.settings = settings_in(read_object(args));
  } catch (const json::exception& error) {
    train::fail(atoll::ErrorCode::bad_data, "{}: no settings of atoll-train: {}", args.string(),
                error.what());
  } catch (const atoll::Error& error) {
    train::fail(error.code(), "{}: {}", args.string(), error.what());
  }
  if (run.settings->adapters) run.parameters = 0;
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

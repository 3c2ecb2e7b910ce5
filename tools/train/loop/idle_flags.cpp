#include "loop/idle_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "data/sources.hpp"

namespace train {
namespace {

using Flags = std::initializer_list<std::pair<std::string_view, bool>>;

// Adds a line if some of the flags are set.
void add(std::vector<std::string>& lines, const Flags& flags, std::string_view reason) {
  std::vector<std::string_view> set;
  for (const auto& [flag, is_set] : flags) {
    if (is_set) set.push_back(flag);
  }
  if (set.empty()) return;
  lines.push_back(fmt::format("{} {} no effect {}", fmt::join(set, ", "),
                              set.size() == 1 ? "has" : "have", reason));
}

bool has_raw_ids(const RunOptions& options, const std::string& data) {
  return !data.empty() &&
         std::ranges::any_of(parse_sources(data, options.data_type), [](const SourceSpec& source) {
           return source.kind == SourceKind::raw_ids;
         });
}

void add_optimizer(std::vector<std::string>& lines, const RunOptions& o) {
  const RunOptions usual;
  if (o.optimizer == "sgd") {
    add(lines,
        {{"--beta1", o.beta1 != usual.beta1},
         {"--beta2", o.beta2 != usual.beta2},
         {"--epsilon", o.epsilon != usual.epsilon},
         {"--moments", o.moments != usual.moments}},
        "with --optimizer sgd");
  }
  if (o.optimizer != "muon") {
    add(lines, {{"--momentum", o.momentum != usual.momentum}}, "without --optimizer muon");
  }
  const bool decays =
      o.weight_decay > 0 || std::ranges::any_of(o.group, [](const std::string& group) {
        return group.find("weight_decay") != group.npos;
      });
  if (!decays) add(lines, {{"--decay", o.decay != usual.decay}}, "without --weight-decay");
  if (o.lr_warmup >= o.steps && o.steps > 0) {
    lines.push_back(fmt::format(
        "--lr-warmup {}: the run has {} steps, so the learning rate does not reach --lr",
        o.lr_warmup, o.steps));
  }
}

void add_speed(std::vector<std::string>& lines, const RunOptions& o) {
  if (o.warmup_steps >= o.steps && o.steps > 0) {
    lines.push_back(fmt::format(
        "--warmup-steps {}: not below --steps {}, so there will be no figures of the run's speed",
        o.warmup_steps, o.steps));
  }
  if (!o.mesh.empty()) add(lines, {{"--islands", o.islands > 0}}, "with --mesh");
  if (o.device == "host") {
    add(lines,
        {{"--products", o.products != RunOptions().products},
         {"--gather", o.gather != RunOptions().gather}},
        "on CPUs");
  } else if (o.strategy == "no_shard") {
    add(lines, {{"--gather", o.gather != RunOptions().gather}}, "with --strategy no_shard");
  }
}

void add_results(std::vector<std::string>& lines, const RunOptions& o) {
  const RunOptions usual;
  if (!o.save_checkpoint) {
    add(lines,
        {{"--checkpoint-every", o.checkpoint_every != usual.checkpoint_every},
         {"--keep-last", o.keep_last != usual.keep_last},
         {"--keep-every", o.keep_every != usual.keep_every}},
        "with --no-checkpoint");
  } else if (o.checkpoint_every > 0 && o.keep_every % o.checkpoint_every != 0) {
    lines.push_back(fmt::format(
        "--keep-every {}: no multiple of --checkpoint-every {}, so some of these steps have no "
        "checkpoint",
        o.keep_every, o.checkpoint_every));
  }
  if (o.export_weights.empty()) {
    add(lines, {{"--export-dtype", !o.export_dtype.empty()}, {"--lora-merge", o.lora_merge}},
        "without --export");
  }
  const bool evaluates = !o.eval_data.empty() || o.eval_split > 0;
  if (o.export_weights.empty() && !evaluates) {
    add(lines, {{"--ema", o.ema > 0}}, "without --export and without an evaluation");
  }
  if (o.metrics_port == 0) {
    add(lines, {{"--metrics-address", o.metrics_address != usual.metrics_address}},
        "without --metrics-port");
  }
}

}  // namespace

std::vector<std::string> idle_flags(const RunOptions& options) {
  std::vector<std::string> lines;
  if (!has_raw_ids(options, options.data) && !has_raw_ids(options, options.eval_data)) {
    add(lines, {{"--data-type", !options.data_type.empty()}},
        "on these data, which name their type");
  }
  const bool has_init = !options.init.empty() && options.init != "none";
  if (has_init) {
    add(lines, {{"--model", options.model != RunOptions().model}},
        "with --init, whose folder has the model");
  }
  add_optimizer(lines, options);
  const std::string_view gathering[] = {"auto", "full_shard", "hybrid_shard"};
  if (std::ranges::find(gathering, options.strategy) == std::end(gathering)) {
    add(lines, {{"--inner-shards", options.inner_shards > 0}},
        fmt::format("with --strategy {}, which keeps whole parameters", options.strategy));
  }
  add_speed(lines, options);
  add_results(lines, options);
  return lines;
}

}  // namespace train

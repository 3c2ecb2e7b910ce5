#include "loop/options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>

#include "atoll/fsdp.hpp"
#include "atoll/mesh.hpp"
#include "data/sources.hpp"
#include "fail.hpp"
#include "loop/flags.hpp"
#include "loop/model_source.hpp"
#include "loop/parameter_groups.hpp"
#include "loop/stopping.hpp"

namespace train {
namespace {

void check_words(const Flag& flag, const std::string& word) {
  if (flag.words.empty()) return;
  require(std::ranges::find(flag.words, word) != flag.words.end(), "{} {}: use {}{}", flag.name(),
          word, flag.words.size() > 1 ? "one of " : "", fmt::join(flag.words, ", "));
}

// Checks a value other than the default against the row of its flag in the table.
void check_row(const Flag& flag, const RunOptions& options) {
  std::visit(
      [&](auto what) {
        const auto& value = options.*what;
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          check_words(flag, value);
        } else if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
          for (const std::string& word : value) check_words(flag, word);
        } else {
          const bool fits =
              flag.numbers.have == nullptr || flag.numbers.have(static_cast<double>(value));
          require(fits, "{}: must {}", flag.name(), flag.numbers.must);
        }
      },
      flag.member);
  require(flag.needs.holds == nullptr || flag.needs.holds(options), "{}: needs {}", flag.name(),
          flag.needs.text);
}

StepRange parse_range(const std::string& text) {
  StepRange range;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, range.first);
  const bool colon = first.ec == std::errc() && first.ptr != end && *first.ptr == ':';
  const auto last = std::from_chars(colon ? first.ptr + 1 : end, end, range.last);
  require(last.ec == std::errc() && last.ptr == end,
          "--trace-steps {}: use FIRST:LAST, for example 3:7", text);
  return range;
}

void check_data(const RunOptions& options) {
  require(options.eval_data.empty() || options.eval_split == 0,
          "--eval-data and --eval-split: use one of them");
  parse_sources(options.data, options.data_type);
  if (options.eval_data.empty()) return;
  for (const SourceSpec& source : parse_sources(options.eval_data, options.data_type)) {
    require(source.weight == 1, "{} {}: every sample counts once, so remove the weight",
            options.evaluate && options.eval_data == options.data ? "--data" : "--eval-data",
            source.text);
  }
}

// Checks that the decay of the learning rate and the traced steps lie within the run.
void check_within_steps(const RunOptions& options) {
  require(
      options.lr_decay_steps == 0 || options.warmup_steps + options.lr_decay_steps <= options.steps,
      "--lr-decay-steps {}: with --warmup-steps {} it exceeds --steps {}", options.lr_decay_steps,
      options.warmup_steps, options.steps);
  if (options.trace_steps.empty()) return;
  const StepRange range = parse_range(options.trace_steps);
  require(1 <= range.first && range.first <= range.last && range.last <= options.steps,
          "--trace-steps {}: must lie within 1:{}, and FIRST must not exceed LAST",
          options.trace_steps, options.steps);
}

void check_groups(const RunOptions& options) {
  for (const std::string& text : options.group) {
    const atoll::fsdp::ParamGroup group = parse_group(text);
    require(options.optimizer != "sgd" || (!group.beta1 && !group.beta2),
            "--group {}: --optimizer sgd has no beta1 and no beta2", text);
  }
}

void check_muon(const RunOptions& options) {
  if (options.optimizer != "muon") return;
  require(options.moments == "f32",
          "--optimizer muon: keeps its states in f32, not in --moments {}", options.moments);
  require(options.skip_nonfinite,
          "--optimizer muon: always skips updates whose gradient norm is not finite; remove "
          "--no-skip-nonfinite");
}

void check_arithmetic(const RunOptions& options) {
  require(!options.fp8 || options.seq % 16 == 0,
          "--fp8: --seq {} must be a multiple of 16, for example {}", options.seq,
          (options.seq + 15) / 16 * 16);
  const auto processors = std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN));
  const auto most = std::max(64L, 4 * processors);  // more threads only wait for one another
  require(options.threads <= most,
          "--threads {}: this host has {} processors; use at most {} threads for a rank",
          options.threads, processors, most);
  require(options.ema == 0 || options.skip_nonfinite || options.clip > 0,
          "--ema: cannot average weights that are updated during backward; remove --clip 0 or "
          "--no-skip-nonfinite");
}

void check_adapters(const RunOptions& options) {
  require(options.lora_base.empty() || !options.lora_merge,
          "--lora-merge: the base is in 8 bits, and merging would lose what the rounding has left "
          "out; export the adapters, and merge them into the original weights with peft");
  require(std::ranges::find(options.freeze, "*") == options.freeze.end(),
          "--freeze *: leaves no parameter to train");
  require(options.lora_rank == 0 || options.lora_merge ||
              !options.export_weights.ends_with(".safetensors"),
          "--export {}: adapters need a folder; use one, or --lora-merge for the whole model",
          options.export_weights);
}

void check_steps(const RunOptions& options) {
  require(options.steps >= (options.export_weights.empty() ? 1 : 0),
          "--steps: must be at least 1; with --export, 0 only reads and writes the weights");
  if (!options.max_time.empty()) parse_duration("--max-time", options.max_time);
}

// Shortens the default warm-up if it would take all steps of the run.
void shorten_warmup(RunOptions& options) {
  if (options.usual_warmup && options.warmup_steps >= options.steps) {
    options.warmup_steps = options.steps / 10;
  }
}

}  // namespace

RunOptions resolved(RunOptions options) {
  if (options.epochs == 0) shorten_warmup(options);
  // Rows of synthetic:copy have seq tokens; short rows teach copying as well as long ones.
  if (options.seq == 0) options.seq = options.data == "synthetic:copy" ? 64 : 512;
  if (options.evaluate && options.eval_data.empty() && options.eval_split == 0) {
    options.eval_data = options.data;
    if (options.eval_samples == 0) options.eval_samples = options.samples;
  }
  return options;
}

bool only_exports(const RunOptions& options) {
  return options.steps == 0 && options.epochs == 0 && !options.export_weights.empty();
}

void check(const RunOptions& options) {
  for (const Flag& flag : flags()) {
    if (!flag.has_default(options)) check_row(flag, options);
  }
  check_data(options);
  if (!options.mesh.empty()) check_flag("--mesh", [&] { atoll::parse_mesh(options.mesh); });
  check_arithmetic(options);
  check_adapters(options);
  check_steps(options);
  check_groups(options);
  check_muon(options);
  if (!options.trace_steps.empty()) parse_range(options.trace_steps);
  if (options.epochs == 0 && options.warmup_ratio == 0) check_within_steps(options);
}

void count_steps(RunOptions& options, std::int64_t samples) {
  if (options.epochs > 0) {
    const std::int64_t of_epoch = (samples + options.global_batch - 1) / options.global_batch;
    const double steps = std::ceil(options.epochs * static_cast<double>(of_epoch));
    require(steps < 1e15, "--epochs {}: {:.3g} steps are too many", options.epochs, steps);
    options.steps = static_cast<std::int64_t>(steps);
    shorten_warmup(options);
  }
  if (options.warmup_ratio > 0) {
    const double steps = std::ceil(options.warmup_ratio * static_cast<double>(options.steps));
    options.warmup_steps = static_cast<std::int64_t>(steps);
  }
  check_within_steps(options);
}

nlohmann::json to_json(const RunOptions& options, Use use) {
  auto json = nlohmann::json::object();
  for (const Flag& flag : flags()) {
    const bool is_idle = use == Use::resumed && flag.idle(options) != nullptr;
    if ((flag.uses & use) && !is_idle) json[flag.key()] = flag.value(options);
  }
  return json;
}

std::vector<std::string> idle_flags(const RunOptions& options) {
  std::map<std::string_view, std::vector<std::string_view>> names;  // idle flags by the reason
  for (const Flag& flag : flags()) {
    if (flag.has_default(options)) continue;
    if (const Idle* const idle = flag.idle(options)) names[idle->text].push_back(flag.name());
  }
  std::vector<std::string> lines;
  for (const auto& [reason, idle] : names) {
    lines.push_back(fmt::format("{} {} no effect {}", fmt::join(idle, ", "),
                                idle.size() == 1 ? "has" : "have", reason));
  }
  const auto& o = options;
  if (o.evaluate) return lines;  // the other warnings are about steps
  if (o.warmup_steps >= o.steps && o.steps > 0) {
    lines.push_back(fmt::format(
        "--warmup-steps {}: the run has {} steps, so the learning rate does not reach --lr",
        o.warmup_steps, o.steps));
  }
  if (o.untimed_steps >= o.steps && o.steps > 0) {
    lines.push_back(fmt::format(
        "--untimed-steps {}: not below --steps {}, so there will be no figures of the run's speed",
        o.untimed_steps, o.steps));
  }
  if (o.save_checkpoint && o.checkpoint_every > 0 && o.keep_every % o.checkpoint_every != 0) {
    lines.push_back(fmt::format(
        "--keep-every {}: no multiple of --checkpoint-every {}, so some of these steps have no "
        "checkpoint",
        o.keep_every, o.checkpoint_every));
  }
  return lines;
}

StepRange traced_steps(const RunOptions& options, std::int64_t done) {
  constexpr std::int64_t usual = 5;
  if (options.trace.empty()) return {};
  if (!options.trace_steps.empty()) return parse_range(options.trace_steps);
  const std::int64_t first = std::min(done + options.untimed_steps + 1, options.steps);
  return {first, std::min(first + usual - 1, options.steps)};
}

std::string run_name(const RunOptions& options) {
  if (!options.run_name.empty()) return options.run_name;
  std::string data;
  for (const SourceSpec& source : parse_sources(options.data, options.data_type)) {
    data += (data.empty() ? "" : "+") + source.path.stem().string();
  }
  std::replace(data.begin(), data.end(), ':', '-');
  return fmt::format("{}-{}-{}", model_name(options), data, options.strategy);
}

}  // namespace train

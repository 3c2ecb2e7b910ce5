#include "loop/options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "atoll/fsdp.hpp"
#include "atoll/mesh.hpp"
#include "data/sources.hpp"
#include "fail.hpp"
#include "loop/adapters.hpp"
#include "loop/groups.hpp"
#include "loop/model_source.hpp"
#include "loop/resume.hpp"
#include "loop/schedule.hpp"
#include "loop/stopping.hpp"

namespace train {
namespace {

void require_one_of(const std::string& value, std::string_view flag,
                    const std::vector<std::string_view>& known) {
  require(std::ranges::find(known, value) != known.end(), "{} {}: use one of {}", flag, value,
          fmt::join(known, ", "));
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
  require_one_of(options.train_on, "--train-on", {"output", "all"});
  require(options.eval_split >= 0 && options.eval_split < 1, "--eval-split: must be in [0, 1)");
  const bool evaluates = !options.eval_data.empty() || options.eval_split > 0;
  require(evaluates || options.eval_every == 0,
          "--eval-every: needs --eval-data FILE or --eval-split SHARE");
  require(evaluates || options.eval_samples == 0,
          "--eval-samples: needs --eval-data FILE or --eval-split SHARE");
  require(options.eval_data.empty() || options.eval_split == 0,
          "--eval-data and --eval-split: use one of them");
  parse_sources(options.data, options.data_type);
  if (!options.eval_data.empty()) {
    for (const SourceSpec& source : parse_sources(options.eval_data, options.data_type)) {
      require(source.weight == 1, "--eval-data {}: every sample counts once, so remove the weight",
              source.text);
    }
  }
}

void check_trace(const RunOptions& options) {
  if (options.trace_steps.empty()) return;
  require(!options.trace.empty(), "--trace-steps: needs --trace");
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

void check_mesh(const RunOptions& options) {
  if (options.mesh.empty()) return;
  try {
    atoll::parse_mesh(options.mesh);
  } catch (const Error& error) {
    fail(error.code(), "--mesh: {}", error.what());
  }
}

// Counts, and numbers that must not be negative.
void check_counts(const RunOptions& options) {
  using Checks = std::initializer_list<std::pair<std::string_view, bool>>;
  for (const auto& [flag, fine] : Checks{{"--global-batch", options.global_batch >= 1},
                                         {"--reduce-buffers", options.reduce_buffers >= 1}})
    require(fine, "{}: must be at least 1", flag);
  require(options.steps >= (options.export_weights.empty() ? 1 : 0),
          "--steps: must be at least 1; with --export, 0 only reads and writes the weights");
  for (const auto& [flag, fine] : Checks{{"--micro-batch", options.micro_batch >= 0},
                                         {"--warmup-steps", options.warmup_steps >= 0},
                                         {"--lr-warmup", options.lr_warmup >= 0},
                                         {"--weight-decay", options.weight_decay >= 0},
                                         {"--clip", options.clip >= 0},
                                         {"--inner-shards", options.inner_shards >= 0},
                                         {"--prefetch", options.prefetch >= 0},
                                         {"--threads", options.threads >= 0},
                                         {"--samples", options.samples >= 0},
                                         {"--eval-samples", options.eval_samples >= 0},
                                         {"--eval-every", options.eval_every >= 0},
                                         {"--show-data", options.show_data >= 0},
                                         {"--max-skipped", options.max_skipped >= 0},
                                         {"--log-norms", options.log_norms >= 0},
                                         {"--keep-last", options.keep_last >= 0},
                                         {"--keep-every", options.keep_every >= 0},
                                         {"--checkpoint-every", options.checkpoint_every >= 0}})
    require(fine, "{}: must not be negative", flag);
}

int processors() { return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))); }

// More threads than this only wait for one another.
int most_threads() { return std::max(64, 4 * processors()); }

void check_ranges(const RunOptions& options) {
  require(options.beta1 >= 0 && options.beta1 < 1, "--beta1: must be in [0, 1)");
  require(options.beta2 >= 0 && options.beta2 < 1, "--beta2: must be in [0, 1)");
  require(options.momentum >= 0 && options.momentum < 1, "--momentum: must be in [0, 1)");
  require(options.ema >= 0 && options.ema < 1, "--ema: must be in [0, 1), for example 0.999");
  require(options.ema == 0 || options.skip_nonfinite || options.clip > 0,
          "--ema: cannot average weights that are updated during backward; remove --clip 0 or "
          "--no-skip-nonfinite");
  require(options.check_fabric >= 0 && options.check_fabric <= 1,
          "--check-fabric: must be in [0, 1], for example 0.85 for 85 %");
  require(options.fabric_rate >= 0, "--fabric-rate: must not be negative");
  require(options.fabric_rate == 0 || options.check_fabric > 0,
          "--fabric-rate: needs --check-fabric SHARE");
  require(options.min_mfu >= 0 && options.min_mfu <= 1,
          "--min-mfu: must be in [0, 1], for example 0.4 for 40 %");
  require(options.metrics_port >= 0 && options.metrics_port <= 65535,
          "--metrics-port: must be in [1, 65535], or 0 for no endpoint");
  require(options.seq >= 2, "--seq: must be at least 2 tokens");
  require(options.lr >= 0 && options.lr <= 1e30, "--lr: must be in [0, 1e30]");
  require(options.peak_seconds > 0 && options.peak_seconds <= 3600,
          "--peak-seconds: must be above 0 and at most 3600");
  require(!options.products.empty(), "--products: use on, off or the name of a file");
  const int most = most_threads();
  require(options.threads <= most,
          "--threads {}: this host has {} processors; use at most {} threads for a rank",
          options.threads, processors(), most);
  require(options.epsilon > 0, "--epsilon: must be greater than 0");
}

void check_words(const RunOptions& options) {
  require_one_of(options.dtype, "--dtype", {"f32", "bf16"});
  require(!options.fp8 || options.dtype == "bf16",
          "--fp8: add --dtype bf16, from which operands are converted");
  require(!options.fp8 || options.seq % 16 == 0,
          "--fp8: --seq {} must be a multiple of 16, for example {}", options.seq,
          (options.seq + 15) / 16 * 16);
  require_one_of(options.reduce_dtype, "--reduce-dtype", {"f32", "bf16"});
  require_one_of(options.moments, "--moments", {"f32", "bf16"});
  require_one_of(options.optimizer, "--optimizer", {"adamw", "sgd", "muon"});
  require_one_of(options.decay, "--decay", {"all", "matrices", "matrices-no-embeddings"});
  require_one_of(options.lr_schedule, "--lr-schedule", {"constant", "linear", "cosine", "wsd"});
  require_one_of(options.device, "--device", {"auto", "host", "cuda"});
  require_one_of(options.pad_to, "--pad-to", {"longest", "seq", "pack"});
  require_one_of(options.recompute, "--recompute", {"none", "selective", "full"});
  require_one_of(options.gather, "--gather", {"copy-engines", "sms", "auto"});
  if (!options.export_dtype.empty()) {
    require_one_of(options.export_dtype, "--export-dtype", {"f32", "bf16", "f16"});
  }
  require_one_of(options.accumulate, "--accumulate", {"auto", "shard", "local"});
  std::vector<std::string_view> strategies{"auto"};
  for (const auto strategy : atoll::fsdp::every_strategy()) {
    strategies.push_back(atoll::fsdp::name(strategy));
  }
  require_one_of(options.strategy, "--strategy", strategies);
  check_mesh(options);
}

}  // namespace

RunOptions resolved(RunOptions options) {
  // Rows of synthetic:copy have seq tokens; short rows teach copying as well as long ones.
  if (options.seq == 0) options.seq = options.data == "synthetic:copy" ? 64 : 512;
  return options;
}

void check(const RunOptions& options) {
  check_counts(options);
  check_ranges(options);
  check_words(options);
  check_data(options);
  if (!options.max_time.empty()) parse_duration("--max-time", options.max_time);
  check_schedule(options);
  check_adapters(options);
  check_resume(options);
  check_groups(options);
  check_muon(options);
  check_trace(options);
}

StepRange traced_steps(const RunOptions& options, std::int64_t done) {
  constexpr std::int64_t usual = 5;
  if (options.trace.empty()) return {};
  if (!options.trace_steps.empty()) return parse_range(options.trace_steps);
  const std::int64_t first = std::min(done + options.warmup_steps + 1, options.steps);
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

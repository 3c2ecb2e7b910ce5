#include "foreign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <variant>

#include "loop/flags.hpp"

namespace train {
namespace {

// Names as cli::complaint() compares them: in lower case, with "-" between words.
constexpr cli::ForeignName flags_of_others[] = {
    // transformers (TrainingArguments and its example scripts), TRL, PEFT
    {"adam-beta1", "--beta1"},
    {"adam-beta2", "--beta2"},
    {"adam-epsilon", "--epsilon"},
    {"auto-find-batch-size", "--micro-batch 0"},
    {"bf16", "--dtype bf16"},
    {"data-seed", "--seed"},
    {"dataset", "--data"},
    {"dataset-name", "--data"},
    {"deepspeed", "--strategy"},
    {"do-eval", "--eval-split"},
    {"early-stopping-patience", "--early-stopping"},
    {"eval-steps", "--eval-every"},
    {"eval-strategy", "--eval-every"},
    {"evaluation-strategy", "--eval-every"},
    {"fp16", "--dtype bf16"},
    {"fsdp", "--strategy"},
    {"fsdp-config", "--strategy"},
    {"full-determinism", "ATOLL_DETERMINISTIC=1"},
    {"gradient-accumulation-steps", "--global-batch"},
    {"gradient-checkpointing", "--recompute full"},
    {"group-by-length", "--pad-to pack"},
    {"learning-rate", "--lr"},
    {"load-best-model-at-end", "--keep-best"},
    {"load-in-8bit", "--lora-base int8"},
    {"logging-dir", "--out"},
    {"lora-r", "--lora-rank"},
    {"lr-scheduler-type", "--lr-schedule"},
    {"max-eval-samples", "--eval-samples"},
    {"max-grad-norm", "--clip"},
    {"max-length", "--seq"},
    {"max-seq-length", "--seq"},
    {"max-steps", "--steps"},
    {"max-train-samples", "--samples"},
    {"model-id", "--model"},
    {"model-name-or-path", "--model"},
    {"no-cuda", "--device cpu"},
    {"num-train-epochs", "--epochs"},
    {"optim", "--optimizer"},
    {"output-dir", "--out"},
    {"packing", "--pad-to pack"},
    {"per-device-eval-batch-size", "--micro-batch"},
    {"per-device-train-batch-size", "--micro-batch"},
    {"push-to-hub", "--export"},
    {"report-to", "atoll-watch"},
    {"resume-from-checkpoint", "--resume"},
    {"save-steps", "--checkpoint-every"},
    {"save-strategy", "--checkpoint-every"},
    {"save-total-limit", "--keep-last"},
    {"tokenizer-name", "--tokenizer"},
    {"train-file", "--data"},
    {"use-cpu", "--device cpu"},
    {"validation-file", "--eval-data"},
    {"validation-split-percentage", "--eval-split"},
    // accelerate
    {"fsdp-sharding-strategy", "--strategy"},
    {"gradient-clipping", "--clip"},
    {"mixed-precision", "--dtype"},
    {"num-processes", "mpirun -n"},
    {"nproc-per-node", "mpirun -n"},
    {"zero-stage", "--strategy"},
    // axolotl
    {"adapter", "--lora-rank"},
    {"base-model", "--model"},
    {"datasets", "--data"},
    {"load-in-4bit", "--lora-base int8"},
    {"lora-target-modules", "--lora-targets"},
    {"lr-scheduler", "--lr-schedule"},
    {"micro-batch-size", "--micro-batch"},
    {"num-epochs", "--epochs"},
    {"sample-packing", "--pad-to pack"},
    {"sequence-len", "--seq"},
    {"train-on-inputs", "--train-on all"},
    {"val-set-size", "--eval-split"},
    {"wandb-project", "atoll-watch"},
    // torchtitan
    {"activation-checkpoint.mode", "--recompute"},
    {"checkpoint.interval", "--checkpoint-every"},
    {"job.config-file", "--config"},
    {"job.dump-folder", "--out"},
    {"lr-scheduler.decay-type", "--lr-schedule"},
    {"lr-scheduler.warmup-steps", "--warmup-steps"},
    {"metrics.enable-wandb", "atoll-watch"},
    {"model.flavor", "--model"},
    {"model.name", "--model"},
    {"optimizer.lr", "--lr"},
    {"optimizer.name", "--optimizer"},
    {"parallelism.data-parallel-replicate-degree", "--mesh"},
    {"parallelism.data-parallel-shard-degree", "--mesh"},
    {"profiling.enable-profiling", "--trace"},
    {"training.dataset", "--data"},
    {"training.global-batch-size", "--global-batch"},
    {"training.local-batch-size", "--micro-batch"},
    {"training.max-norm", "--clip"},
    {"training.mixed-precision-param", "--dtype"},
    {"training.mixed-precision-reduce", "--reduce-dtype"},
    {"training.seq-len", "--seq"},
    {"training.steps", "--steps"},
    // nanoGPT, llm.c, Megatron-LM and others
    {"batch-size", "--micro-batch"},
    {"clip-grad", "--clip"},
    {"decay-lr", "--lr-schedule"},
    {"eval-interval", "--eval-every"},
    {"global-batch-size", "--global-batch"},
    {"grad-clip", "--clip"},
    {"init-from", "--init"},
    {"lr-decay-style", "--lr-schedule"},
    {"lr-warmup-iters", "--warmup-steps"},
    {"max-iters", "--steps"},
    {"min-lr", "--lr-min-ratio"},
    {"save-interval", "--checkpoint-every"},
    {"seq-length", "--seq"},
    {"train-batch-size", "--global-batch"},
    {"train-iters", "--steps"},
    {"warmup", "--warmup-steps"},
    {"warmup-iters", "--warmup-steps"},
};

struct ForeignWord {
  std::string_view flags, theirs, ours;  // `flags`: flags that take the word, each with a space
};
constexpr std::string_view types = "--dtype --reduce-dtype --moments --export-dtype ";
// Words in lower case, with "_" between words.
constexpr ForeignWord words_of_others[] = {
    {types, "bfloat16", "bf16"},
    {types, "torch.bfloat16", "bf16"},
    {types, "float32", "f32"},
    {types, "torch.float32", "f32"},
    {types, "fp32", "f32"},
    {types, "float", "f32"},
    {"--export-dtype ", "float16", "f16"},
    {"--export-dtype ", "fp16", "f16"},
    {types, "float16", "bf16"},
    {types, "fp16", "bf16"},
    {"--strategy ", "ddp", "no_shard"},
    {"--strategy ", "zero1", "shard_optimizer"},
    {"--strategy ", "zero_1", "shard_optimizer"},
    {"--strategy ", "zero2", "shard_grad"},
    {"--strategy ", "zero_2", "shard_grad"},
    {"--strategy ", "shard_grad_op", "shard_grad"},
    {"--strategy ", "zero3", "full_shard"},
    {"--strategy ", "zero_3", "full_shard"},
    {"--strategy ", "fsdp", "full_shard"},
    {"--strategy ", "fsdp2", "full_shard"},
    {"--strategy ", "hsdp", "hybrid_shard"},
    {"--strategy ", "_hybrid_shard_zero2", "hybrid_shard_grad"},
    {"--lr-schedule ", "constant_with_warmup", "constant"},
    {"--lr-schedule ", "cosine_with_min_lr", "cosine"},
    {"--lr-schedule ", "warmup_stable_decay", "wsd"},
    {"--optimizer ", "adam", "adamw"},
    {"--optimizer ", "adamw_torch", "adamw"},
    {"--optimizer ", "adamw_torch_fused", "adamw"},
    {"--recompute ", "true", "full"},
    {"--recompute ", "false", "none"},
    {"--recompute ", "off", "none"},
    {"--pad-to ", "max_length", "seq"},
    {"--pad-to ", "packing", "pack"},
    {"--train-on ", "assistant", "output"},
    {"--device ", "gpu", "cuda"},
};

std::string plain(std::string_view word) {
  std::string name(word);
  for (char& letter : name) {
    letter =
        letter == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return name;
}

// The word of this trainer for a word that a flag does not take; "" if there is none.
std::string_view own_word(const Flag& flag, const std::string& word) {
  const std::string name = plain(word);
  const auto known =
      std::ranges::find_if(flag.words, [&](std::string_view own) { return plain(own) == name; });
  if (known != flag.words.end()) return *known;
  const std::string taken = std::string(flag.name()) + " ";
  for (const ForeignWord& foreign : words_of_others) {
    if (foreign.theirs == name && foreign.flags.find(taken) != foreign.flags.npos) {
      return foreign.ours;
    }
  }
  return "";
}

}  // namespace

std::span<const cli::ForeignName> foreign_flags() { return flags_of_others; }

std::string foreign_word(const RunOptions& options) {
  for (const Flag& flag : flags()) {
    const auto* const member = std::get_if<std::string RunOptions::*>(&flag.member);
    if (member == nullptr || flag.words.empty() || flag.has_default(options)) continue;
    const std::string& word = options.**member;
    if (std::ranges::find(flag.words, word) != flag.words.end()) continue;
    if (const auto own = own_word(flag, word); !own.empty()) {
      return fmt::format("{} {}: use {}", flag.name(), word, own);
    }
  }
  return "";
}

}  // namespace train

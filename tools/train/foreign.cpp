#include "foreign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>
#include <variant>
#include <vector>

#include "loop/flags.hpp"

namespace train {
namespace {

// Names as cli::complaint() compares them: in lower case, with "-" between words. They are those of
// transformers (TrainingArguments and its example scripts), TRL, PEFT, accelerate, axolotl,
// torchtitan, nanoGPT, llm.c, Megatron-LM and others.
constexpr cli::ForeignName flags_of_others[] = {
    {"--beta1", "adam-beta1"},
    {"--beta2", "adam-beta2"},
    {"--checkpoint-every", "save-steps checkpoint.interval save-interval"},
    {"--checkpoint-every (a number of steps)", "save-strategy"},
    {"--clip", "max-grad-norm gradient-clipping training.max-norm clip-grad grad-clip"},
    {"--config", "job.config-file"},
    {"--data", "dataset dataset-name data-path train-file datasets training.dataset"},
    {"--device cpu", "no-cuda use-cpu"},
    {"--dtype", "mixed-precision training.mixed-precision-param"},
    {"--dtype bf16", "bf16 fp16"},
    {"--early-stopping", "early-stopping-patience"},
    {"--epochs", "num-train-epochs num-epochs"},
    {"--epsilon", "adam-epsilon eps"},
    {"--eval-data", "validation-file"},
    {"--eval-every", "eval-steps eval-interval"},
    {"--eval-every (a number of steps)", "eval-strategy evaluation-strategy"},
    {"--eval-samples", "max-eval-samples"},
    {"--eval-split", "validation-split-percentage val-set-size"},
    {"--export", "push-to-hub"},
    {"--global-batch", "training.global-batch-size global-batch-size train-batch-size"},
    {"--global-batch (= micro batch x accumulation steps x ranks)",
     "gradient-accumulation-steps gradient-accumulation"},
    {"--init", "init-from"},
    {"--keep-best (OUT/best leads to that checkpoint; nothing is loaded)",
     "load-best-model-at-end"},
    {"--keep-best (by the loss of the evaluation)", "metric-for-best-model greater-is-better"},
    {"--keep-last", "save-total-limit"},
    {"--lora-base int8", "load-in-8bit load-in-4bit"},
    {"--lora-merge", "merge-adapters merge-and-unload"},
    {"--lora-rank", "lora-r adapter use-peft"},
    {"--lora-targets", "lora-target-modules"},
    {"--lr", "learning-rate optimizer.lr"},
    {"--lr-min-ratio", "min-lr"},
    {"--lr-schedule",
     "lr-scheduler-type lr-scheduler lr-scheduler.decay-type decay-lr lr-decay-style"},
    {"--mesh", "parallelism.data-parallel-replicate-degree parallelism.data-parallel-shard-degree"},
    {"--micro-batch (a step keeps the samples of --global-batch)",
     "per-device-train-batch-size micro-batch-size training.local-batch-size batch-size"},
    {"--memory-limit", "memory"},
    {"--micro-batch (training takes the same)", "per-device-eval-batch-size"},
    {"--micro-batch 0", "auto-find-batch-size"},
    {"--model", "model-id model-name-or-path base-model model.flavor model.name"},
    {"--optimizer", "optim optimizer.name"},
    {"--out", "output-dir job.dump-folder"},
    {"--pad-to pack", "group-by-length packing sample-packing"},
    {"--recompute", "activation-checkpoint.mode"},
    {"--recompute full", "gradient-checkpointing"},
    {"--reduce-dtype", "training.mixed-precision-reduce"},
    {"--resume", "resume-from-checkpoint"},
    {"--samples", "max-train-samples"},
    {"--seed", "data-seed"},
    {"--seq", "max-length max-seq-length sequence-len training.seq-len seq-length"},
    {"--steps", "max-steps training.steps max-iters train-iters"},
    {"--strategy", "ddp deepspeed fsdp fsdp-config fsdp-sharding-strategy zero-stage"},
    {"--tokenizer", "tokenizer-name"},
    {"--trace", "profiling.enable-profiling"},
    {"--train-on all", "train-on-inputs"},
    {"--train-on output (the default)", "assistant-only-loss completion-only-loss"},
    {"--weight-decay", "wd optimizer.weight-decay"},
    {"--warmup-steps", "lr-scheduler.warmup-steps lr-warmup-iters warmup warmup-iters"},
    {"ATOLL_DETERMINISTIC=1", "full-determinism"},
    {"atoll-data --field", "dataset-text-field text-column"},
    {"atoll-data --template", "chat-template-path chat-template template"},
    {"atoll-train compare RUN RUN", "compare diff"},
    {"atoll-train evaluate MODEL before the run", "eval-on-start"},
    {"atoll-train evaluate MODEL (or --eval-data beside training)", "eval do-eval predict test"},
    {"flags alone: atoll-train --model MODEL --data FILE trains", "train sft pretrain finetune"},
    {"atoll-watch --dir", "logging-dir"},
    {"atoll-watch", "report-to wandb-project metrics.enable-wandb"},
    {"mpirun -n N (a plan without ranks: atoll-plan --gpu CPU --gpus-per-host N)",
     "num-processes nproc-per-node nproc ranks num-nodes nodes nnodes"},
    {"another --out or an empty folder", "overwrite-output-dir"},
    {"nothing in its place: a run trains unless --evaluate is given", "do-train"},
    {"nothing in its place: a thread reads the data ahead", "dataloader-num-workers"},
    {"nothing in its place: the device decides how attention is computed",
     "attn-implementation use-flash-attention-2 flash-attention tf32"},
    {"nothing in its place: atoll has no tensor or pipeline parallelism",
     "tensor-parallel-size tensor-model-parallel-size pipeline-parallel-size tp pp cp "
     "parallelism.tensor-parallel-degree tensor-parallel-degree context-parallel-size "
     "parallelism.context-parallel-degree context-parallel-degree "
     "parallelism.pipeline-parallel-degree pipeline-parallel-degree"},
    {"nothing in its place: the trainer compiles nothing",
     "compile torch-compile training.compile"},
    {"nothing in its place: adapters have no dropout", "lora-dropout"},
    {"nothing in its place: steps.jsonl has every step", "logging-steps logging-strategy"},
};

struct ForeignWords {
  std::string_view flags, ours, theirs;  // flags that take the word; lists separated by spaces
};
constexpr std::string_view types = "--dtype --reduce-dtype --moments --export-dtype";
// Words in lower case, with "_" between words. The first row that contains a word applies.
constexpr ForeignWords words_of_others[] = {
    {types, "f32", "float32 torch.float32 fp32 float"},
    {"--export-dtype", "f16", "float16 fp16"},
    {types, "bf16", "bfloat16 torch.bfloat16 float16 fp16"},
    {"--strategy", "no_shard", "ddp"},
    {"--strategy", "shard_optimizer", "zero1 zero_1"},
    {"--strategy", "shard_grad", "zero2 zero_2 shard_grad_op"},
    {"--strategy", "full_shard", "zero3 zero_3 fsdp fsdp2"},
    {"--strategy", "hybrid_shard", "hsdp"},
    {"--strategy", "hybrid_shard_grad", "_hybrid_shard_zero2"},
    {"--lr-schedule", "constant", "constant_with_warmup"},
    {"--lr-schedule", "cosine", "cosine_with_min_lr"},
    {"--lr-schedule", "wsd", "warmup_stable_decay"},
    {"--optimizer", "adamw", "adam adamw_torch adamw_torch_fused"},
    {"--recompute", "full", "true"},
    {"--recompute", "none", "false off"},
    {"--pad-to", "seq", "max_length"},
    {"--pad-to", "pack", "packing"},
    {"--train-on", "output", "assistant"},
    {"--device", "cuda", "gpu"},
};

std::string plain(std::string_view word) {
  std::string name(word);
  for (char& letter : name) {
    letter =
        letter == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return name;
}

// Returns this trainer's word for a word that the flag does not take; "" if there is none.
std::string_view own_word(const Flag& flag, const std::string& word) {
  const std::string name = plain(word);
  const auto known =
      std::ranges::find_if(flag.words, [&](std::string_view own) { return plain(own) == name; });
  if (known != flag.words.end()) return *known;
  const auto* const foreign = std::ranges::find_if(words_of_others, [&](const ForeignWords& row) {
    return cli::has_word(row.flags, flag.name()) && cli::has_word(row.theirs, name);
  });
  return foreign == std::end(words_of_others) ? "" : foreign->ours;
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

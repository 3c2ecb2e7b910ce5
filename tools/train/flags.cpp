#include "flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

#include "cli/config_file.hpp"
#include "cli/size.hpp"
#include "model/config.hpp"

namespace train {
namespace {

// Flags of other trainers.
constexpr cli::ForeignName foreign_names[] = {
    {"learning-rate", "--lr"},
    {"batch-size", "--micro-batch"},
    {"per-device-train-batch-size", "--micro-batch"},
    {"train-batch-size", "--global-batch"},
    {"gradient-accumulation-steps", "--global-batch"},
    {"max-steps", "--steps"},
    {"num-train-epochs", "--steps"},
    {"epochs", "--steps"},
    {"max-seq-length", "--seq"},
    {"max-length", "--seq"},
    {"output-dir", "--out"},
    {"model-name-or-path", "--model"},
    {"dataset", "--data"},
    {"train-file", "--data"},
    {"warmup", "--lr-warmup"},
    {"lr-scheduler-type", "--lr-schedule"},
    {"max-grad-norm", "--clip"},
    {"save-steps", "--checkpoint-every"},
    {"save-total-limit", "--keep-last"},
    {"eval-steps", "--eval-every"},
    {"resume-from-checkpoint", "--resume"},
    {"gradient-checkpointing", "--recompute"},
    {"bf16", "--dtype"},
    {"fsdp", "--strategy"},
    {"lora-r", "--lora-rank"},
};

// CLI11 would parse "-1" into an unsigned option.
std::string not_negative(const std::string& text) {
  return text.starts_with('-') ? "must not be negative" : "";
}

// Returns whether the text begins with a number that the type cannot hold.
template <class Number>
bool is_too_large(const std::string& text) {
  Number number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc::result_out_of_range;
}

// Checks the texts of integers, also of sizes with units: CLI11 would turn a number that is too
// large into the largest one.
void check_integers(CLI::App& app) {
  for (CLI::Option* option : app.get_options({})) {
    const std::string type = option->get_type_name();
    const bool is_unsigned = type.starts_with("UINT");
    if (!is_unsigned && !type.starts_with("INT")) continue;
    // A transformation comes before all other checks.
    option->transform(CLI::Validator(
        [is_unsigned](std::string& text) -> std::string {
          if (is_unsigned && text.starts_with('-')) return not_negative(text);
          const bool is_large =
              is_unsigned ? is_too_large<std::uint64_t>(text) : is_too_large<std::int64_t>(text);
          return is_large ? text + " is too large" : "";
        },
        ""));
  }
}

void add_data_flags(CLI::App& app, RunOptions& o) {
  app.option_defaults()->group("Data");
  app.add_option(
      "--data", o.data,
      "demo, synthetic, synthetic:copy, or a file: .tok of atoll-data, Alpaca .json, raw ids with "
      "--data-type, or what atoll-data then converts (.jsonl, .txt, .parquet, ...). Sources "
      "separated by commas are mixed by weight: a.tok:0.7,b.tok:0.3");
  app.add_option("--data-type", o.data_type,
                 "uint16 or uint32: the ids of files without a header, as nanoGPT writes them");
  app.add_option(
      "--tokenizer", o.tokenizer,
      "bytes, the path of a SentencePiece model, of a tokenizer.json or of their folder, ids:N (N "
      "ids without text), or auto: that of the first .tok file, else that of the model's folder, "
      "else bytes");
  app.add_option("--train-on", o.train_on,
                 "output: the tokens that the data mark as trained; all: prompts as well");
  app.add_option("--samples", o.samples, "use the first N samples of each source; 0 uses all");
  app.add_option(
      "--eval-data", o.eval_data,
      "data of the evaluation, as --data but without weights; its loss is logged after the "
      "last step");
  app.add_option("--eval-split", o.eval_split,
                 "evaluate on this share of each source, for example 0.05, and train on the rest");
  app.add_option("--eval-samples", o.eval_samples,
                 "evaluate on at most N samples, of each source by its size; 0 uses all")
      ->check(not_negative);
  app.add_option("--eval-every", o.eval_every,
                 "steps between evaluations; 0 evaluates after the last step only")
      ->check(not_negative);
  app.add_option("--show-data", o.show_data,
                 "print N samples with ids, targets and text, and the figures of the data, and end")
      ->check(not_negative)
      ->configurable(false);
  app.add_option("--seq", o.seq,
                 "longest row in tokens; 0 means 512, or 64 with --data synthetic:copy");
  app.add_option("--global-batch", o.global_batch, "samples per step, summed over all ranks");
  app.add_option("--micro-batch", o.micro_batch,
                 "rows per forward and backward on each rank; 0 takes as many as fit in memory");
  app.add_option("--pad-to", o.pad_to,
                 "row length: longest (sample of the micro batch), seq (always --seq), or pack: "
                 "several samples share a row, without attention between them (on GPUs, fast only "
                 "with cuDNN 9.18 on an H100 or B200)");
}

void add_model_flags(CLI::App& app, RunOptions& o) {
  app.option_defaults()->group("Model");
  app.add_option(
      "--model", o.model,
      fmt::format("preset ({}), the path of a Hugging Face config.json, a folder with one, "
                  "or ORG/NAME[@REVISION] in the Hub's local cache (HF_HUB_CACHE, "
                  "HF_HOME); a folder's or the Hub's weights are loaded. A preset has as many "
                  "token ids as the tokenizer",
                  fmt::join(preset_names(), ", ")));
  app.add_option("--init", o.init,
                 "Hugging Face weights to start from: a .safetensors file, a folder of them or "
                 "ORG/NAME in the Hub's local cache; the config.json beside them replaces --model. "
                 "none: random weights. Default: those of --model, if it has any");
  app.add_option("--freeze", o.freeze,
                 "parameters that stay untrained, as comma-separated patterns of Hugging Face "
                 "names: 'model.embed_tokens.*,*norm.weight'")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--lora-rank", o.lora_rank,
                 "train adapters (LoRA) of this rank and freeze everything else; 0 trains the "
                 "model itself");
  app.add_option("--lora-alpha", o.lora_alpha,
                 "adapters are scaled by alpha / rank; 0 means twice the rank");
  app.add_option(
         "--lora-targets", o.lora_targets,
         fmt::format("matrices that get adapters, comma-separated: {}, or shell patterns of "
                     "their Hugging Face names or of what follows a dot: 'q_*', "
                     "'layers.0.*', '*.mlp.*'. Default: all",
                     fmt::join(adapter_targets(), ", ")))
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--lora-base", o.lora_base,
                 "int8: keep and gather the frozen matrices of the layers in 8 bits, with one "
                 "factor for 64 values, which halves their memory beside bf16; needs --strategy "
                 "full_shard or hybrid_shard, also on one GPU. Default: as --dtype");
  app.add_flag("--lora-merge", o.lora_merge,
               "--export writes the whole model with the adapters added to it, instead of the "
               "adapters alone in PEFT's format");
  app.add_option(
      "--dtype", o.dtype,
      "f32 or bf16, for compute, activations and gathered parameters. Each rank's shards of "
      "trained parameters stay in f32");
  app.add_flag(
      "--fp8", o.fp8,
      "on GPUs of compute capability 9.0 (H100) or later: matrix products of the layers in 8-bit "
      "floating point, e4m3 for inputs and weights and e5m2 for gradients; needs --dtype bf16. "
      "Embedding, head, attention, norms and adapters stay in bf16, and the optimizer in f32");
  app.add_option("--recompute", o.recompute,
                 "activations recomputed in backward: none, selective (norms and SwiGLU) or full "
                 "(whole layers)");
  app.add_option("--head-rows", o.head_rows,
                 "tokens per block of logits: smaller blocks need less memory, but more passes "
                 "over the head's gradient; 0 means 512 "
                 "on CPUs, 2048 on GPUs")
      ->check(not_negative);
  app.add_option(
      "--products", o.products,
      "on GPUs: off takes cuBLASLt's first choice for each matrix product, as "
      "ATOLL_DETERMINISTIC=1 does. on, or a file, times the algorithms of large products "
      "in the first step and keeps the fastest in the file; on means "
      "atoll/products-HOST.json in $XDG_CACHE_HOME or ~/.cache. Each rank times for "
      "itself, so ranks may differ in the last bits. On an H200, on was no faster than off");
  app.add_option("--seed", o.seed, "seed of weights, sample order and generated data")
      ->check(not_negative);
}

void add_optimizer_flags(CLI::App& app, RunOptions& o) {
  app.option_defaults()->group("Optimizer");
  app.add_option("--optimizer", o.optimizer,
                 "adamw, sgd, or muon: Muon for the matrices of layers, AdamW for the others");
  app.add_option("--lr", o.lr, "learning rate after --lr-warmup");
  app.add_option(
      "--lr-schedule", o.lr_schedule,
      "constant, linear, cosine, or wsd (warm-up, stable, decay: constant until the last "
      "--lr-decay-steps, which are linear). All but constant end at --lr-min-ratio");
  app.add_option("--lr-warmup", o.lr_warmup,
                 "steps over which the learning rate rises linearly from 0; the first step has 0, "
                 "as in Hugging Face's schedulers");
  app.add_option("--lr-min-ratio", o.lr_min_ratio, "learning rate at --steps, as a part of --lr");
  app.add_option("--lr-decay-steps", o.lr_decay_steps,
                 "wsd: steps of the decay; 0 means a tenth of --steps");
  app.add_option("--beta1", o.beta1, "AdamW: decay of the first moment");
  app.add_option(
      "--beta2", o.beta2,
      "AdamW: decay of the second moment. Hugging Face's default is 0.999, which averages "
      "over 50 times as many steps");
  app.add_option("--epsilon", o.epsilon, "AdamW: term added to the denominator");
  app.add_option("--momentum", o.momentum, "Muon: momentum of the matrices of layers");
  app.add_option("--weight-decay", o.weight_decay,
                 "decoupled weight decay of the parameters that --decay selects");
  app.add_option(
      "--decay", o.decay,
      "parameters with weight decay: matrices (all but norms and biases), "
      "matrices-no-embeddings (as matrices, without the embedding or a head tied to it), or all");
  app.add_option("--group", o.group,
                 "settings for some parameters, as PATTERN:SETTING=NUMBER,...: PATTERN of Hugging "
                 "Face names, and lr_scale (factor of the learning rate), weight_decay, beta1 or "
                 "beta2: '*norm.weight:lr_scale=0.1,weight_decay=0'. May be repeated; the first "
                 "group that matches a parameter applies")
      ->allow_extra_args(false);
  app.add_option("--moments", o.moments,
                 "AdamW: f32, or bf16 with stochastic rounding, which halves the moments' memory");
  app.add_option(
      "--ema", o.ema,
      "keep a moving average of the weights with this decay, for example 0.999, evaluate "
      "it as well, and write it with --export; 0 keeps none");
  app.add_option("--clip", o.clip, "largest global gradient norm; 0 disables clipping");
  app.add_flag("--skip-nonfinite,!--no-skip-nonfinite", o.skip_nonfinite,
               "skip updates whose gradient norm is not finite (default). Disabling this and "
               "--clip lets weights be updated during backward");
  app.add_option("--max-skipped", o.max_skipped,
                 "end the run with an error after this many steps in a row whose loss or gradient "
                 "norm is not finite; 0 goes on for ever");
}

void add_sharding_flags(CLI::App& app, RunOptions& o) {
  app.option_defaults()->group("Sharding");
  app.add_option("--strategy", o.strategy,
                 "no_shard (DDP), shard_optimizer (ZeRO-1), shard_grad (ZeRO-2), full_shard "
                 "(ZeRO-3), hybrid_shard or hybrid_shard_grad (ZeRO-3 or ZeRO-2 within the shard "
                 "axis), or auto: the fastest that fits");
  app.add_option("--mesh", o.mesh,
                 "replicate x shard, for example 2x4; shards follow it with hybrid_shard and "
                 "hybrid_shard_grad only. Default: planned from the topology");
  app.add_option("--islands", o.islands,
                 "plan the mesh as if the ranks formed N islands; 0 uses the detected islands")
      ->check(not_negative);
  app.add_option(
         "--memory-limit", o.memory_limit,
         "bytes per rank, for example 16G (powers of 1024): larger plans are refused, and "
         "--strategy auto chooses what fits with a tenth in reserve; 0: no limit, except that "
         "auto must fit a rank's share of the host's or GPU's memory")
      ->transform(cli::as_bytes);
  app.add_option("--accumulate", o.accumulate,
                 "gradients between micro batches: shard (reduced after each), local (kept whole "
                 "until the last), or auto (chosen by the strategy)");
  app.add_option("--reduce-dtype", o.reduce_dtype,
                 "f32, or bf16, which halves the bytes of gradient reductions and rounds the sum "
                 "on each axis");
  app.add_option(
      "--inner-shards", o.inner_shards,
      "partial resharding (hpZ in ZeRO++): from forward until backward, each rank keeps 1/N "
      "of the gathered parameters, and backward gathers them among N neighbouring ranks; 0 "
      "disables this");
  app.add_option(
      "--gather", o.gather,
      "what runs gathers on GPUs: copy-engines (where NCCL can use them, so that gathers "
      "take no SMs from compute), sms (a few SMs), or auto "
      "(a run that gathers measures both beside matrix products at the start, and takes sms if "
      "they are at least 2 % faster)");
  app.add_option(
      "--prefetch", o.prefetch,
      "units (layers, embedding, head) gathered ahead of compute; 0 gathers on demand. One "
      "more if the head is tied to the embedding");
  app.add_option("--reduce-buffers", o.reduce_buffers,
                 "units whose whole gradients may exist at once while they are reduced");
}

void add_machine_flags(CLI::App& app, RunOptions& o) {
  app.option_defaults()->group("Machine");
  app.add_option("--device", o.device,
                 "host (CPUs), cuda (GPUs, shared when a host has fewer GPUs than ranks), or auto: "
                 "cuda if every rank has its own usable GPU");
  app.add_option("--backend", o.backend,
                 "communication backend: host, mpi, nccl, ... Default: the best that works");
  app.add_option(
      "--threads", o.threads,
      "CPU compute threads per rank; 0 means the rank's share of the cores and of the quota "
      "that affinity masks and control groups leave to the ranks of its host");
  app.add_option(
      "--peak-seconds", o.peak_seconds,
      "seconds to measure the peak rate of matrix products: the base of mfu_measured, and of "
      "MFU where the GPU's published peak is not known");
  app.add_option("--check-fabric", o.check_fabric,
                 "before training, run the checks of atoll-topo --doctor and measure the "
                 "collectives; fail below this share of the rates of the links, for example 0.85. "
                 "0 checks nothing");
  app.add_option(
      "--fabric-rate", o.fabric_rate,
      "bus bandwidth in GB/s that --check-fabric expects of collectives between hosts; 0 "
      "takes the rates of the NICs");
  app.add_flag("--require-gdr", o.require_gdr,
               "fail unless every connection between hosts uses GPUDirect RDMA; checked after the "
               "first step and at the end");
}

void add_run_flags(CLI::App& app, RunOptions& o) {
  app.option_defaults()->group("Run");
  app.add_option("--steps", o.steps, "number of optimizer steps");
  app.add_option(
      "--warmup-steps", o.warmup_steps,
      "initial steps that speed figures leave out; for the learning rate see --lr-warmup");
  app.add_option("--checkpoint-every", o.checkpoint_every,
                 "steps between checkpoints; 0 saves only at the end. SIGTERM, SIGUSR1 "
                 "and Ctrl-C save after the current step and end the run with exit code 75. Open "
                 "MPI's mpirun kills ranks a second after SIGTERM and Ctrl-C: send it SIGUSR1, or "
                 "start it with --mca odls_base_sigkill_timeout 600");
  app.add_flag(
      "--checkpoint-beside,!--no-checkpoint-beside", o.checkpoint_beside,
      "write checkpoints while training goes on (default); training waits for the last one, "
      "and for those of --optimizer muon");
  app.add_option("--keep-last", o.keep_last, "newest checkpoints to keep; 0 keeps all")
      ->check(not_negative);
  app.add_option("--keep-every", o.keep_every,
                 "also keep the checkpoint of every N-th step; 0: off")
      ->check(not_negative);
  app.add_flag("--checkpoint,!--no-checkpoint", o.save_checkpoint,
               "save checkpoints in the results folder (default)");
  app.add_option("--resume", o.resume,
                 "checkpoint folder to continue from, on any number of ranks; or auto: the newest "
                 "whole checkpoint in the results folder, and a new run if there is none");
  app.add_option("--resume-with-changes", o.resume_with_changes,
                 "what may differ from the run that saved the checkpoint, comma-separated: data, "
                 "seed, global_batch, optimizer, frozen, model")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option(
      "--max-time", o.max_time,
      "save and end the run before this time is over, for example 3h30m (a number alone is "
      "seconds); exit code 75");
  app.add_flag("--dry-run", o.dry_run,
               "set everything up, but load no weights: print mesh, strategy, memory, tokens and "
               "FLOP of the run, and end; needs the memory of the run")
      ->configurable(false);
}

void add_result_flags(CLI::App& app, RunOptions& o) {
  app.option_defaults()->group("Results");
  app.add_option("--out", o.out, "results folder. Default: results/training/RUN-NAME");
  app.add_option("--run-name", o.run_name, "name of the run. Default: MODEL-DATA-STRATEGY");
  app.add_option("--export", o.export_weights,
                 "folder to write at the end, which transformers opens: weights, config.json and "
                 "tokenizer; or a .safetensors file for the weights alone: --init FILE then needs "
                 "a config.json in "
                 "the same folder");
  app.add_option("--export-dtype", o.export_dtype, "f32, bf16 or f16. Default: that of --dtype");
  app.add_option("--trace", o.trace,
                 "Chrome trace file to write at the end, with all ranks' streams and collectives; "
                 "open it in https://ui.perfetto.dev");
  app.add_option("--trace-steps", o.trace_steps,
                 "steps to trace, FIRST:LAST counted from 1, for example 3:7. Default: the 5 steps "
                 "after --warmup-steps");
  app.add_option("--log-norms", o.log_norms,
                 "every N steps, write the norms of each layer's gradients and weights to "
                 "steps.jsonl; 0 never does")
      ->check(not_negative);
  app.add_option(
      "--metrics-port", o.metrics_port,
      "serve training_mfu and other figures to Prometheus at http://127.0.0.1:PORT/metrics "
      "on rank 0's host; 0 serves none");
  app.add_option("--metrics-address", o.metrics_address,
                 "address of --metrics-port; 0.0.0.0 lets other machines read the figures");
  app.add_option("--min-mfu", o.min_mfu,
                 "end with exit code 3 if the run's MFU is lower, for example 0.4; 0: no limit");
  app.add_option(
         "--max-memory", o.max_memory,
         "end with exit code 4 if a rank used more bytes, for example 20G (powers of 1024); "
         "0: no limit")
      ->transform(cli::as_bytes);
  app.add_flag("--quiet", o.quiet, "show no progress line");
}

void add_config_flags(CLI::App& app, bool& prints) {
  app.option_defaults()->group("Run");
  cli::add_config_option(app)->group("Run");
  app.add_flag("--print-config", prints, "print all flags as --config reads them, and end")
      ->configurable(false);
}

}  // namespace

std::span<const cli::ForeignName> names_of_other_trainers() { return foreign_names; }

void add_flags(CLI::App& app, RunOptions& options, bool& prints) {
  app.option_defaults()->always_capture_default();
  add_data_flags(app, options);
  add_model_flags(app, options);
  add_optimizer_flags(app, options);
  add_sharding_flags(app, options);
  add_machine_flags(app, options);
  add_run_flags(app, options);
  add_result_flags(app, options);
  add_config_flags(app, prints);
  check_integers(app);
}

}  // namespace train

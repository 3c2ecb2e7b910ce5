#include "loop/flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "atoll/fsdp.hpp"
#include "data/sources.hpp"
#include "model/config.hpp"

namespace train {
namespace {

using O = RunOptions;

const Numbers not_negative{[](double x) { return x >= 0; }, "not be negative"};
const Numbers at_least_1{[](double x) { return x >= 1; }, "be at least 1"};
const Numbers at_least_2{[](double x) { return x >= 2; }, "be at least 2"};
const Numbers above_0{[](double x) { return x > 0; }, "be greater than 0"};
const Numbers below_1{[](double x) { return x >= 0 && x < 1; }, "be in [0, 1)"};
const Numbers from_0_to_1{[](double x) { return x >= 0 && x <= 1; },
                          "be in [0, 1], for example 0.4 for 40 %"};
const Numbers up_to_1e30{[](double x) { return x >= 0 && x <= 1e30; }, "be in [0, 1e30]"};
const Numbers within_an_hour{[](double x) { return x > 0 && x <= 3600; },
                             "be above 0 and at most 3600"};
const Numbers port_or_0{[](double x) { return x >= 0 && x <= 65535; },
                        "be in [1, 65535], or 0 for no endpoint"};

bool has_evaluation(const O& o) { return !o.eval_data.empty() || o.eval_split > 0; }
bool has_raw_ids(const O& o, const std::string& data) {
  return !data.empty() &&
         std::ranges::any_of(parse_sources(data, o.data_type), [](const SourceSpec& source) {
           return source.kind == SourceKind::raw_ids;
         });
}
bool reshards(const O& o) {
  return o.strategy == "auto" || o.strategy == "full_shard" || o.strategy == "hybrid_shard";
}
bool has_decay(const O& o) {
  return o.weight_decay > 0 || std::ranges::any_of(o.group, [](const std::string& group) {
           return group.find("weight_decay") != group.npos;
         });
}

const Needs an_evaluation{has_evaluation, "--eval-data FILE or --eval-split SHARE"};
const Needs between_steps{[](const O& o) { return has_evaluation(o) && o.eval_every > 0; },
                          "an evaluation, by --eval-data or --eval-split, and --eval-every"};
const Needs with_lora{[](const O& o) { return o.lora_rank > 0; }, "--lora-rank"};
const Idle with_sgd{[](const O& o) { return o.optimizer == "sgd"; }, "with --optimizer sgd"};
const Idle on_cpus{[](const O& o) { return o.device == "cpu" || o.device == "host"; }, "on CPUs"};
const Idle without_export{[](const O& o) { return o.export_weights.empty(); }, "without --export"};
const Idle with_evaluate{[](const O& o) { return o.evaluate; }, "with --evaluate"};
const Idle without_checkpoints{[](const O& o) { return !o.save_checkpoint; },
                               "with --no-checkpoint"};

constexpr Use of_optimizer = Use::saved | Use::compared | Use::resumed;

Words strategy_names() {
  Words names{"auto"};
  for (const auto strategy : atoll::fsdp::every_strategy()) {
    names.push_back(atoll::fsdp::name(strategy));
  }
  return names;
}

std::vector<Flag> data_flags() {
  return {
      {"--data", &O::data,
       "demo, synthetic, synthetic:copy, or a file: .tok of atoll-data, Alpaca .json, raw ids with "
       "--data-type, or what atoll-data then converts (.jsonl, .txt, .parquet, ...). Sources "
       "separated by commas are mixed by weight: a.tok:0.7,b.tok:0.3"},
      {"--data-type", &O::data_type,
       "uint16 or uint32: the ids of files without a header, as nanoGPT writes them",
       Idle{[](const O& o) { return !has_raw_ids(o, o.data) && !has_raw_ids(o, o.eval_data); },
            "on these data, which name their type"}},
      {"--tokenizer", &O::tokenizer,
       "bytes, the path of a SentencePiece model, of a tokenizer.json or of their folder, ORG/NAME "
       "in the Hub's local cache, ids:N (N ids without text), or auto: that of the first .tok "
       "file, else that of the model's folder, else bytes"},
      {"--train-on", &O::train_on,
       "output: the tokens that the data mark as trained; all: prompts as well",
       Words{"output", "all"}},
      {"--samples", &O::samples, "use the first N samples of each source; 0 uses all",
       not_negative},
      {"--eval-data", &O::eval_data,
       "data of the evaluation, as --data but without weights; its loss is logged after the last "
       "step"},
      {"--eval-split", &O::eval_split,
       "evaluate on this share of each source, for example 0.05, and train on the rest", below_1},
      {"--eval-samples", &O::eval_samples,
       "evaluate on at most N samples, of each source by its size; 0 uses all", not_negative,
       an_evaluation},
      {"--eval-every", &O::eval_every,
       "steps between evaluations; 0 evaluates after the last step only", not_negative,
       an_evaluation},
      {"--early-stopping", &O::early_stopping,
       "end the run after this many evaluations in a row without a lower loss (with --ema, that of "
       "the average); 0 goes on to --steps",
       not_negative, between_steps},
      {"--show-data", &O::show_data,
       "print N samples with ids, targets and text, and the figures of the data, and end",
       not_negative, Use::early},
      {"--seq", &O::seq, "longest row in tokens; 0 means 512, or 64 with --data synthetic:copy",
       at_least_2},
      {"--global-batch", &O::global_batch, "samples per step, summed over all ranks", at_least_1},
      {"--micro-batch", &O::micro_batch,
       "rows per forward and backward on each rank; 0 takes as many as fit in memory",
       not_negative},
      {"--pad-to", &O::pad_to,
       "row length: longest (sample of the micro batch), seq (always --seq), or pack: several "
       "samples share a row, without attention between them (on GPUs, fast only with cuDNN 9.18 on "
       "an H100 or B200)",
       Words{"longest", "seq", "pack"}},
  };
}

std::vector<Flag> model_flags() {
  return {
      {"--model", &O::model,
       "preset, the path of a Hugging Face config.json, a folder with one, a run as for --init, or "
       "ORG/NAME[@REVISION] in the Hub's local cache (HF_HUB_CACHE, HF_HOME); a folder's or the "
       "Hub's weights are "
       "loaded. A preset has as many token ids as the tokenizer",
       Idle{[](const O& o) { return !o.init.empty() && o.init != "none"; },
            "with --init, whose folder has the model"}},
      {"--init", &O::init,
       "Hugging Face weights to start from: a .safetensors file, a folder of them or ORG/NAME in "
       "the Hub's local cache; the config.json beside them replaces --model. Or an earlier run: "
       "its "
       "results folder or a checkpoint, from whose weights a new training starts. none: random "
       "weights. Default: those of --model, if it has any"},
      {"--freeze", &O::freeze,
       "parameters that stay untrained, as comma-separated patterns of Hugging Face names: "
       "'model.embed_tokens.*,*norm.weight'"},
      {"--lora-rank", &O::lora_rank,
       "train adapters (LoRA) of this rank and freeze everything else; 0 trains the model itself",
       not_negative},
      {"--lora-alpha", &O::lora_alpha,
       "adapters are scaled by alpha / rank; 0 means twice the rank", not_negative, with_lora},
      {"--lora-targets", &O::lora_targets,
       fmt::format(
           "matrices that get adapters, comma-separated: {}, or shell patterns of their Hugging "
           "Face names or of what follows a dot: 'q_*', 'layers.0.*', '*.mlp.*'. Default: all",
           fmt::join(adapter_targets(), ", ")),
       with_lora},
      {"--lora-base", &O::lora_base,
       "int8: keep and gather the frozen matrices of the layers in 8 bits, with one factor for 64 "
       "values, which halves their memory beside bf16; needs --strategy full_shard or "
       "hybrid_shard, also on one GPU. Default: as --dtype",
       Words{"int8"}, with_lora},
      {"--lora-merge", &O::lora_merge,
       "--export writes the whole model with the adapters added to it, instead of the adapters "
       "alone in PEFT's format",
       with_lora, without_export},
      {"--dtype", &O::dtype,
       "f32 or bf16, for compute, activations and gathered parameters; auto: bf16 on GPUs, f32 on "
       "CPUs. Each rank's shards of trained parameters stay in f32",
       Words{"auto", "f32", "bf16"}},
      {"--fp8", &O::fp8,
       "on GPUs of compute capability 9.0 (H100) or later: matrix products of the layers in 8-bit "
       "floating point, e4m3 for inputs and weights and e5m2 for gradients; needs --dtype bf16. "
       "Embedding, head, attention, norms and adapters stay in bf16, and the optimizer in f32",
       Needs{[](const O& o) { return o.dtype != "f32"; }, "--dtype bf16"}},
      {"--recompute", &O::recompute,
       "activations recomputed in backward: none, selective (norms and SwiGLU) or full (whole "
       "layers)",
       Words{"none", "selective", "full"}},
      {"--head-rows", &O::head_rows,
       "tokens per block of logits: smaller blocks need less memory, but more passes over the "
       "head's gradient; 0 means 512 on CPUs, 2048 on GPUs",
       not_negative},
      {"--seed", &O::seed, "seed of weights, sample order and generated data"},
  };
}

std::vector<Flag> optimizer_flags() {
  return {
      {"--optimizer", &O::optimizer,
       "adamw, sgd, or muon: Muon for the matrices of layers, AdamW for the others",
       Words{"adamw", "sgd", "muon"}},
      {"--lr", &O::lr,
       "learning rate after --warmup-steps; auto: 2e-5 for loaded weights, 2e-4 with --lora-rank, "
       "1e-3 for random weights, and that of the checkpoint after --resume",
       up_to_1e30, Usual{usual_rate}},
      {"--lr-schedule", &O::lr_schedule,
       "constant, linear, cosine, or wsd (warm-up, stable, decay: constant until the last "
       "--lr-decay-steps, which are linear). All but constant end at --lr-min-ratio",
       Words{"constant", "linear", "cosine", "wsd"}},
      {"--warmup-steps,--lr-warmup", &O::warmup_steps,
       "steps over which the learning rate rises linearly from 0; the first step has 0, as in "
       "Hugging Face's schedulers",
       not_negative},
      {"--warmup-ratio", &O::warmup_ratio,
       "--warmup-steps as a part of all steps, for example 0.03", below_1},
      {"--lr-min-ratio", &O::lr_min_ratio, "learning rate at --steps, as a part of --lr",
       from_0_to_1,
       Needs{[](const O& o) { return o.lr_schedule != "constant"; },
             "--lr-schedule linear, cosine or wsd"}},
      {"--lr-decay-steps", &O::lr_decay_steps,
       "wsd: steps of the decay; 0 means a tenth of --steps", not_negative,
       Needs{[](const O& o) { return o.lr_schedule == "wsd"; }, "--lr-schedule wsd"}},
      {"--beta1", &O::beta1, "AdamW: decay of the first moment", below_1, with_sgd, of_optimizer},
      {"--beta2", &O::beta2,
       "AdamW: decay of the second moment. Hugging Face's default is 0.999, which averages over 50 "
       "times as many steps",
       below_1, with_sgd, of_optimizer},
      {"--epsilon", &O::epsilon, "AdamW: term added to the denominator", above_0, with_sgd,
       of_optimizer},
      {"--momentum", &O::momentum, "Muon: momentum of the matrices of layers", below_1,
       Idle{[](const O& o) { return o.optimizer != "muon"; }, "without --optimizer muon"},
       of_optimizer},
      {"--weight-decay", &O::weight_decay,
       "decoupled weight decay of the parameters that --decay selects", not_negative, of_optimizer},
      {"--decay", &O::decay,
       "parameters with weight decay: matrices (all but norms and biases), matrices-no-embeddings "
       "(as matrices, without the embedding or a head tied to it), or all",
       Words{"all", "matrices", "matrices-no-embeddings"},
       Idle{[](const O& o) { return !has_decay(o); }, "without --weight-decay"}, of_optimizer},
      {"--group", &O::group,
       "settings for some parameters, as PATTERN:SETTING=NUMBER,...: PATTERN of Hugging Face "
       "names, and lr_scale (factor of the learning rate), weight_decay, beta1 or beta2: "
       "'*norm.weight:lr_scale=0.1,weight_decay=0'. May be repeated; the first group that matches "
       "a parameter applies",
       Form::repeated, of_optimizer},
      {"--moments", &O::moments,
       "AdamW: f32, or bf16 with stochastic rounding, which halves the moments' memory",
       Words{"f32", "bf16"}, with_sgd},
      {"--ema", &O::ema,
       "keep a moving average of the weights with this decay, for example 0.999, evaluate it as "
       "well, and write it with --export; 0 keeps none",
       below_1,
       Idle{[](const O& o) {
              return o.export_weights.empty() && !has_evaluation(o) && !o.save_checkpoint;
            },
            "without --export, an evaluation or a checkpoint"}},
      {"--clip", &O::clip, "largest global gradient norm; 0 disables clipping", not_negative,
       of_optimizer},
      {"--skip-nonfinite,!--no-skip-nonfinite", &O::skip_nonfinite,
       "skip updates whose gradient norm is not finite (default). Disabling this and --clip lets "
       "weights be updated during backward"},
      {"--max-skipped", &O::max_skipped,
       "end the run with an error after this many steps in a row whose loss or gradient norm is "
       "not finite; 0 goes on for ever",
       not_negative},
  };
}

std::vector<Flag> sharding_flags() {
  return {
      {"--strategy", &O::strategy,
       "no_shard (DDP), shard_optimizer (ZeRO-1), shard_grad (ZeRO-2), full_shard (ZeRO-3), "
       "hybrid_shard or hybrid_shard_grad (ZeRO-3 or ZeRO-2 within the shard axis), or auto: the "
       "fastest that fits",
       strategy_names()},
      {"--mesh", &O::mesh,
       "replicate x shard, for example 2x4; shards follow it with hybrid_shard and "
       "hybrid_shard_grad only. Default: planned from the topology"},
      {"--islands", &O::islands,
       "plan the mesh as if the ranks formed N islands; 0 uses the detected islands", not_negative,
       Idle{[](const O& o) { return !o.mesh.empty(); }, "with --mesh"}},
      {"--memory-limit", &O::memory_limit,
       "bytes per rank, for example 16G (powers of 1024): larger plans are refused, and --strategy "
       "auto chooses what fits with a tenth in reserve; 0: no limit, except that auto must fit a "
       "rank's share of the host's or GPU's memory",
       Form::bytes},
      {"--accumulate", &O::accumulate,
       "gradients between micro batches: shard (reduced after each), local (kept whole until the "
       "last), or auto (chosen by the strategy)",
       Words{"auto", "shard", "local"}},
      {"--reduce-dtype", &O::reduce_dtype,
       "f32, or bf16, which halves the bytes of gradient reductions and rounds the sum on each "
       "axis",
       Words{"f32", "bf16"}},
      {"--secondary-shards", &O::secondary_shards,
       "partial resharding (hpZ in ZeRO++): from forward until backward, each rank keeps 1/N of "
       "the gathered parameters, and backward gathers them among N neighbouring ranks; 0 disables "
       "this",
       not_negative,
       Idle{[](const O& o) { return !reshards(o); },
            "with this --strategy, which keeps whole parameters"}},
      {"--gather", &O::gather,
       "what runs gathers on GPUs: copy-engines (where NCCL can use them, so that gathers take no "
       "SMs from compute), sms (a few SMs), or auto (a run that gathers measures both beside "
       "matrix products at the start, and takes sms if they are at least 2 % faster)",
       Words{"copy-engines", "sms", "auto"}, on_cpus,
       Idle{[](const O& o) { return o.strategy == "no_shard"; }, "with --strategy no_shard"}},
      {"--prefetch", &O::prefetch,
       "units (layers, embedding, head) gathered ahead of compute; 0 gathers on demand. with a "
       "head that is tied to the embedding, one unit more is gathered",
       not_negative},
      {"--reduce-buffers", &O::reduce_buffers,
       "units whose whole gradients may exist at once while they are reduced", at_least_1},
  };
}

std::vector<Flag> machine_flags() {
  return {
      {"--device", &O::device,
       "cpu or host (CPUs), cuda (GPUs, shared when a host has fewer GPUs than ranks), or auto: "
       "cuda if every rank has its own usable GPU",
       Words{"auto", "cpu", "host", "cuda"}},
      {"--backend", &O::backend,
       "communication backend: host, mpi, nccl, ... Default: the best that works"},
      {"--threads", &O::threads,
       "CPU compute threads per rank; 0 means the rank's share of the cores and of the quota that "
       "affinity masks and control groups leave to the ranks of its host",
       not_negative, Use::saved},
      {"--peak-seconds", &O::peak_seconds,
       "seconds to measure the peak rate of matrix products: the base of mfu_measured, and of MFU "
       "where the GPU's published peak is not known",
       within_an_hour, Use::none},
      {"--check-fabric", &O::check_fabric,
       "before training, run the checks of atoll-topo --doctor and measure the collectives; fail "
       "below this share of the rates of the links, for example 0.85. 0 checks nothing",
       from_0_to_1},
      {"--fabric-rate", &O::fabric_rate,
       "bus bandwidth in GB/s that --check-fabric expects of collectives between hosts; 0 takes "
       "the rates of the NICs",
       not_negative, Needs{[](const O& o) { return o.check_fabric > 0; }, "--check-fabric SHARE"}},
      {"--require-gdr", &O::require_gdr,
       "fail unless every connection between hosts uses GPUDirect RDMA; checked after the first "
       "step and at the end"},
  };
}

std::vector<Flag> run_flags() {
  return {
      {"--steps", &O::steps, "number of optimizer steps", not_negative},
      {"--epochs", &O::epochs,
       "passes over the training samples instead of --steps, for example 3 or 0.5", not_negative},
      {"--untimed-steps", &O::untimed_steps, "initial steps that figures of speed leave out",
       not_negative},
      {"--checkpoint-every", &O::checkpoint_every,
       "steps between checkpoints; 0 saves only at the end. SIGTERM, SIGUSR1 and Ctrl-C save after "
       "the current step and end the run with exit code 75. Open MPI's mpirun kills ranks a second "
       "after SIGTERM and Ctrl-C: send it SIGUSR1, or start it with --mca "
       "odls_base_sigkill_timeout 600",
       not_negative, without_checkpoints},
      {"--checkpoint-beside,!--no-checkpoint-beside", &O::checkpoint_beside,
       "write checkpoints while training goes on (default); training waits for the last one, and "
       "for those of --optimizer muon"},
      {"--keep-last", &O::keep_last, "newest checkpoints to keep; 0 keeps all", not_negative,
       without_checkpoints},
      {"--keep-every", &O::keep_every, "also keep the checkpoint of every N-th step; 0: off",
       not_negative, without_checkpoints},
      {"--keep-best", &O::keep_best,
       "save a checkpoint after each evaluation with a lower loss than before (with --ema, that of "
       "the average), let the link `best` lead to it, and keep it",
       between_steps, without_checkpoints},
      {"--checkpoint,!--no-checkpoint", &O::save_checkpoint,
       "save checkpoints in the results folder (default)"},
      {"--resume", &O::resume,
       "checkpoint folder to continue from, on any number of ranks; or auto: the newest whole "
       "checkpoint in the results folder, and a new run if there is none"},
      {"--resume-with-changes", &O::resume_with_changes,
       "what may differ from the run that saved the checkpoint, comma-separated",
       Words{"data", "seed", "global_batch", "optimizer", "frozen", "model"},
       Needs{[](const O& o) { return !o.resume.empty(); }, "--resume"}},
      {"--max-time", &O::max_time,
       "save and end the run before this time is over, for example 3h30m (a number alone is "
       "seconds); exit code 75"},
      {"--dry-run", &O::dry_run,
       "check everything, but load no weights: print mesh, strategy, memory, tokens and FLOP of "
       "the "
       "run, and end; needs little memory itself",
       Use::early},
      {"--evaluate", &O::evaluate,
       "print loss and perplexity of the weights, or of the checkpoint of --resume, on "
       "--eval-data, "
       "--eval-split or all of --data, and end. Writes no files",
       Use::early},
  };
}

std::vector<Flag> result_flags() {
  return {
      {"--out", &O::out, "results folder. Default: results/training/RUN-NAME", Use::compared},
      {"--run-name", &O::run_name, "name of the run. Default: MODEL-DATA-STRATEGY", Use::compared},
      {"--export", &O::export_weights,
       "folder to write at the end, which transformers opens: weights, config.json and tokenizer; "
       "or a .safetensors file for the weights alone: --init FILE then needs a config.json in the "
       "same folder",
       with_evaluate},
      {"--export-dtype", &O::export_dtype, "f32, bf16 or f16. Default: that of --dtype",
       Words{"f32", "bf16", "f16"}, without_export},
      {"--trace", &O::trace,
       "Chrome trace file to write at the end, with all ranks' streams and collectives; open it in "
       "https://ui.perfetto.dev",
       with_evaluate},
      {"--trace-steps", &O::trace_steps,
       "steps to trace, FIRST:LAST counted from 1, for example 3:7. Default: the 5 steps after "
       "--untimed-steps",
       Needs{[](const O& o) { return !o.trace.empty(); }, "--trace"}},
      {"--log-norms", &O::log_norms,
       "every N steps, write the norms of each layer's gradients and weights to steps.jsonl; 0 "
       "never does",
       not_negative},
      {"--metrics-port", &O::metrics_port,
       "serve training_mfu and other figures to Prometheus at http://127.0.0.1:PORT/metrics on "
       "rank 0's host; 0 serves none",
       port_or_0},
      {"--metrics-address", &O::metrics_address,
       "address of --metrics-port; 0.0.0.0 lets other machines read the figures",
       Idle{[](const O& o) { return o.metrics_port == 0; }, "without --metrics-port"}},
      {"--min-mfu", &O::min_mfu,
       "end with exit code 3 if the run's MFU is lower, for example 0.4; 0: no limit", from_0_to_1,
       with_evaluate},
      {"--max-memory", &O::max_memory,
       "end with exit code 4 if a rank used more bytes, for example 20G (powers of 1024); 0: no "
       "limit",
       Form::bytes, with_evaluate},
      {"--quiet", &O::quiet, "show no progress line", Use::none},
  };
}

}  // namespace

std::string Flag::key() const {
  std::string key(name().substr(2));
  std::ranges::replace(key, '-', '_');
  return key;
}

nlohmann::json Flag::value(const RunOptions& options) const {
  return std::visit([&](auto what) { return nlohmann::json(options.*what); }, member);
}

bool Flag::has_default(const RunOptions& options) const {
  static const RunOptions usual;
  return std::visit([&](auto what) { return options.*what == usual.*what; }, member);
}

const Idle* Flag::idle(const RunOptions& options) const {
  const auto found =
      std::ranges::find_if(idles, [&](const Idle& idle) { return idle.holds(options); });
  return found == idles.end() ? nullptr : &*found;
}

const std::vector<Flag>& flags() {
  static const std::vector<Flag> all = [] {
    std::vector<Flag> rows;
    const auto add = [&](std::string_view heading, const std::vector<Flag>& group) {
      for (const Flag& flag : group) rows.emplace_back(flag).group = heading;
    };
    add("Data", data_flags());
    add("Model", model_flags());
    add("Optimizer", optimizer_flags());
    add("Sharding", sharding_flags());
    add("Machine", machine_flags());
    add("Run", run_flags());
    add("Results", result_flags());
    return rows;
  }();
  return all;
}

}  // namespace train

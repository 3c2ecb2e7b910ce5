// atoll-train: fine-tunes or trains a Mistral, sharded over the ranks of a job.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "atoll/world.hpp"
#include "loop/trainer.hpp"
#include "model/config.hpp"

namespace {

constexpr const char* examples =
    "Examples:\n"
    "  atoll-train --data demo\n"
    "  mpirun -n 4 --bind-to none atoll-train --data alpaca.json --tokenizer tokenizer.model \\\n"
    "      --strategy hybrid_shard --mesh 2x2 --steps 100 --out results/alpaca\n"
    "Ranks are found from mpirun, srun --mpi=pmix, mpiexec, torchrun, or ATOLL_RANK, ATOLL_SIZE,\n"
    "ATOLL_ADDR and ATOLL_TOKEN; `atoll-topo --env` lists every variable.";

std::string preset_list() {
  std::string list;
  for (const auto name : train::preset_names())
    list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

// Of unsigned numbers, whose text may still have a sign.
std::string not_negative(const std::string& text) {
  return text.starts_with('-') ? "must not be negative" : "";
}

void add_data_flags(CLI::App& app, train::RunOptions& o) {
  app.add_option("--data", o.data,
                 "demo, synthetic, synthetic:copy, or a file: alpaca .json or .jsonl, text .txt")
      ->group("Data");
  app.add_option("--tokenizer", o.tokenizer, "bytes, or a SentencePiece model file")->group("Data");
  app.add_option("--samples", o.samples, "use the first N samples; 0: all")->group("Data");
  app.add_option("--seq", o.seq, "longest row, in tokens; 0: 512, for synthetic:copy 64")
      ->group("Data");
  app.add_option("--global-batch", o.global_batch, "samples per step, over all ranks")
      ->group("Data");
  app.add_option("--micro-batch", o.micro_batch, "rows per forward and backward of a rank")
      ->group("Data");
  app.add_option(
         "--pad-to", o.pad_to,
         "length of rows: longest (of the micro batch), seq, or pack: as many samples in a "
         "row as fit, each attending to itself alone (on GPUs by kernels in f32, not cuDNN)")
      ->group("Data");
}

void add_model_flags(CLI::App& app, train::RunOptions& o) {
  app.add_option("--model", o.model,
                 "a preset (" + preset_list() + ") or a Hugging Face config.json")
      ->group("Model");
  app.add_option("--init", o.init,
                 "start from Hugging Face safetensors: a folder with a config.json, which replaces "
                 "--model, or one file beside it")
      ->group("Model");
  app.add_option("--freeze", o.freeze,
                 "parameters that are not trained: patterns of Hugging Face names, as in "
                 "'model.embed_tokens.*,*norm.weight'")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group("Model");
  app.add_option("--dtype", o.dtype, "of parameters and activations: f32 or bf16")->group("Model");
  app.add_option("--recompute", o.recompute,
                 "activation checkpointing: none, selective (norms and SwiGLU) or full (layers)")
      ->group("Model");
  app.add_option("--head-rows", o.head_rows,
                 "tokens whose logits exist at a time; 0: 512 on the host, 2048 on a GPU")
      ->check(not_negative)
      ->group("Model");
  app.add_option("--seed", o.seed, "of weights, order of samples and generated data")
      ->check(not_negative)
      ->group("Model");
}

void add_optimizer_flags(CLI::App& app, train::RunOptions& o) {
  app.add_option("--optimizer", o.optimizer, "adamw or sgd")->group("Optimizer");
  app.add_option("--lr", o.lr, "learning rate")->group("Optimizer");
  app.add_option("--lr-schedule", o.lr_schedule, "constant or cosine")->group("Optimizer");
  app.add_option("--lr-warmup", o.lr_warmup, "steps of linear increase")->group("Optimizer");
  app.add_option("--beta1", o.beta1, "of adamw")->group("Optimizer");
  app.add_option("--beta2", o.beta2, "of adamw")->group("Optimizer");
  app.add_option("--epsilon", o.epsilon, "of adamw")->group("Optimizer");
  app.add_option("--weight-decay", o.weight_decay, "decoupled")->group("Optimizer");
  app.add_option(
         "--moments", o.moments,
         "of adamw: f32, or bf16, which halves their memory and rounds up or down by chance")
      ->group("Optimizer");
  app.add_option("--clip", o.clip, "global gradient norm; 0: off")->group("Optimizer");
  app.add_flag("--skip-nonfinite,!--no-skip-nonfinite", o.skip_nonfinite,
               "leave out steps whose gradient norm is not finite (default); without it, and "
               "without --clip, weights are updated beside backward")
      ->group("Optimizer");
}

void add_sharding_flags(CLI::App& app, train::RunOptions& o, int& islands) {
  app.add_option("--strategy", o.strategy,
                 "no_shard (DDP), shard_optimizer (ZeRO-1), shard_grad (ZeRO-2), full_shard "
                 "(ZeRO-3), hybrid_shard or hybrid_shard_grad (the same within the shard axis), or "
                 "auto: the fastest that fits")
      ->group("Sharding");
  app.add_option(
         "--memory-limit", o.memory_limit,
         "bytes of a rank, as in 16G (powers of 1024): auto looks for what fits, and a plan that "
         "is larger is refused; 0: the host's memory, shared out, or the GPU's, for auto alone")
      ->transform(CLI::AsSizeValue(false))
      ->group("Sharding");
  app.add_option(
         "--accumulate", o.accumulate,
         "gradients of a micro batch that is not the last: shard (reduced at once) or local "
         "(kept whole); default: by the strategy")
      ->group("Sharding");
  app.add_option("--mesh", o.mesh,
                 "replicate x shard, as in 2x4; default: planned from the topology")
      ->group("Sharding");
  app.add_option("--islands", islands, "treat the ranks as this many islands; 0: what is found")
      ->check(not_negative)
      ->group("Sharding");
  app.add_option(
         "--device", o.device,
         "what ranks compute on: host (CPUs), cuda (GPUs, which go round among the ranks of a "
         "host), or auto: cuda where every rank has a GPU of its own and what it needs")
      ->group("Sharding");
  app.add_option("--backend", o.backend,
                 "of collectives: host, mpi, nccl, ...; default: the best that works")
      ->group("Sharding");
  app.add_flag("--require-gdr", o.require_gdr,
               "fail where NICs do not reach memory of GPUs (GPUDirect RDMA) on every connection "
               "between hosts: after the first step, and of later connections at the end")
      ->group("Sharding");
  app.add_option("--reduce-dtype", o.reduce_dtype,
                 "what gradients travel as: f32, or bf16, which halves their bytes and rounds the "
                 "sum of each level")
      ->group("Sharding");
  app.add_option(
         "--inner-shards", o.inner_shards,
         "neighbouring ranks that keep between them what forward gathered, for backward to "
         "gather there (partial resharding); 0: not kept. No effect where parameters stay whole")
      ->group("Sharding");
  app.add_option("--prefetch", o.prefetch,
                 "units gathered ahead of compute; 0: none. A tied model takes one more")
      ->group("Sharding");
  app.add_option("--reduce-buffers", o.reduce_buffers,
                 "whole gradients that are written or reduced at the same time")
      ->group("Sharding");
  app.add_option("--threads", o.threads,
                 "compute threads of a rank on the host; 0: cores / ranks there")
      ->group("Sharding");
}

void add_run_flags(CLI::App& app, train::RunOptions& o) {
  app.add_option("--steps", o.steps, "optimizer steps")->group("Run");
  app.add_option("--warmup-steps", o.warmup_steps, "first steps left out of speed figures")
      ->group("Run");
  app.add_option("--out", o.out, "folder of results; default results/training/RUN-NAME")
      ->group("Run");
  app.add_option("--run-name", o.run_name, "default MODEL-DATA-STRATEGY")->group("Run");
  app.add_option("--checkpoint-every", o.checkpoint_every, "steps; 0: only at the end")
      ->group("Run");
  app.add_flag("--no-checkpoint{false},--checkpoint", o.save_checkpoint, "whether to save any")
      ->group("Run");
  app.add_option("--resume", o.resume,
                 "folder of a checkpoint to go on from, at any number of ranks")
      ->group("Run");
  app.add_option("--export", o.export_weights, "safetensors file with the final weights, HF names")
      ->group("Run");
  app.add_option(
         "--trace", o.trace,
         "Chrome trace of all ranks to write, for https://ui.perfetto.dev: what each stream "
         "did, each collective with its bandwidth and whether compute waited for it")
      ->group("Run");
  app.add_option("--trace-steps", o.trace_steps,
                 "FIRST:LAST, counted from 1, as in 3:7; default: 5 steps after --warmup-steps")
      ->group("Run");
  app.add_flag("--quiet", o.quiet, "no progress line")->group("Run");
}

int train_on(atoll::World& world, const train::RunOptions& options) {
  try {
    train::run(world, options);
    return 0;
  } catch (const std::exception& error) {
    world.fail(error.what());
    const std::string who = "rank " + std::to_string(world.rank()) + ": ";
    const std::string what = error.what();  // of communicators, it carries the rank already
    std::fprintf(stderr, "atoll-train: %s%s\n", what.starts_with(who) ? "" : who.c_str(),
                 what.c_str());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a Mistral, sharded over the ranks of a job.", "atoll-train");
  app.footer(examples);
  app.option_defaults()->always_capture_default();
  train::RunOptions options;
  int islands = 0;
  add_data_flags(app, options);
  add_model_flags(app, options);
  add_optimizer_flags(app, options);
  add_sharding_flags(app, options, islands);
  add_run_flags(app, options);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("atoll-train: ") + error.what() + " (--help lists the flags)\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    auto config = atoll::Config::from_env();
    if (islands > 0) config.islands = islands;
    auto world = atoll::World::from_env(config);
    return train_on(world, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "atoll-train: %s\n", error.what());
    return 1;
  }
}

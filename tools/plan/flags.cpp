#include "plan/flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <initializer_list>
#include <tuple>

#include "cli/cli.hpp"
#include "fail.hpp"

namespace plan {
namespace {

using train::require;

// CLI11's own validators accept NaN, and print the largest number as the end of a range.
const CLI::Validator above_zero(
    [](std::string& text) {
      double value = 0;
      const bool fine = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value > 0;
      return fine ? std::string() : text + " must be a number above 0";
    },
    "");
const CLI::Validator not_below_zero(
    [](std::string& text) {
      double value = 0;
      const bool fine =
          CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value >= 0;
      return fine ? std::string() : text + " must be a number of at least 0";
    },
    "");

void declare_job(CLI::App& app, Flags& f) {
  app.option_defaults()->always_capture_default();
  app.option_defaults()->group("The job");
  app.add_option(
      "--model", f.model,
      "preset (atoll-train --help lists them), path of a config.json, or a folder with one");
  app.add_option("--vocab", f.vocab, "tokens of the vocabulary; default: those of the model")
      ->check(above_zero)
      ->default_str("");
  const std::tuple<const char*, std::int64_t*, const char*> dimensions[] = {
      {"--layers", &f.layers, "layers"},
      {"--hidden", &f.hidden, "width of a layer"},
      {"--heads", &f.heads, "heads of queries"},
      {"--kv-heads", &f.kv_heads, "heads of keys and values (with --heads: as many)"},
      {"--ffn", &f.ffn, "width of the feed-forward network"}};
  for (const auto& [flag, field, what] : dimensions) {
    app.add_option(flag, *field, fmt::format("{}; default: as in the model", what))
        ->check(above_zero)
        ->default_str("");
  }
  app.add_option("--seq", f.seq, "tokens of a row")->check(CLI::Range(1, (1 << 24) - 1));
  app.add_option(
         "--global-batch", f.global_batch,
         "rows (atoll-train: samples) per step over all ranks; 0: --micro-batches on each rank")
      ->check(not_below_zero);
  app.add_option("--micro-batch", f.micro_batch,
                 "rows of a micro batch on each rank; 0 tries 1, 2, 4 and 8")
      ->check(not_below_zero);
  app.add_option(
         "--micro-batches", f.micro_batches,
         "micro batches of a rank in a step (gradient accumulation), without --global-batch")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--dtype", f.dtype,
                 "bf16 or f32, for parameters and activations, or auto: both are tried")
      ->check(CLI::IsMember({"bf16", "f32", "auto"}));
  app.add_option(
         "--reduce-dtype", f.reduce_dtype,
         "f32 or bf16, for gradients on the wire, or auto: f32 for atoll, --dtype for PyTorch "
         "(the default of its FSDP before 2.15). atoll still sums bf16 gradients in "
         "f32, by an all_to_all, which between hosts over RDMA is slower than a ring of f32")
      ->check(CLI::IsMember({"f32", "bf16", "auto"}));
  app.add_option("--moments", f.moments, "f32 or bf16, for the moments of AdamW")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--strategy", f.strategy,
                 "no_shard, shard_optimizer, shard_grad, full_shard, hybrid_shard, "
                 "hybrid_shard_grad, or auto: all are "
                 "tried");
  app.add_option("--mesh", f.mesh, "RxS, replicate x shard; default: all that suit the hosts");
  app.add_option("--recompute", f.recompute, "none, selective, full, or auto: all are tried");
  app.add_option(
         "--prefetch", f.prefetch,
         "units to gather ahead of compute, 0 to 8 (one more if the head is tied), or auto: 1, 2 "
         "and 4 are tried")
      ->check([](const std::string& text) {
        const bool known = text == "auto" || (text.size() == 1 && text >= "0" && text <= "8");
        return known ? std::string() : "use a number from 0 to 8, or auto";
      });
  app.add_option("--framework", f.framework, "atoll, pytorch-eager or pytorch-compile");
  app.add_option("--attention", f.attention,
                 "fused, or eager: scores are stored, as without a fused kernel")
      ->check(CLI::IsMember({"fused", "eager"}));
}

void declare_cluster(CLI::App& app, Flags& f) {
  app.option_defaults()->group("The cluster");
  app.add_option("--gpu", f.cluster.gpu,
                 "V100, A100, H100, H200, B200, MI300X, ...; default: H100, or that of --topology");
  app.add_option(
      "--topology", f.topology,
      "FILE that atoll-topo reads, a machine of its catalog such as hgx-h100x16, or here: "
      "supplies the values that no other cluster flag sets");
  app.add_option("--hosts", f.hosts, "number of hosts; default: 1, or that of --topology")
      ->check(CLI::Range(0, 1 << 13));
  app.add_option(
         "--gpus-per-host", f.gpus_per_host,
         "GPUs of a host; default: 8 (1 for --measure), or that of --topology, or of --machine "
         "for CPUs")
      ->check(CLI::Range(0, 256));
  app.add_option("--intra", f.cluster.intra, "links inside a host: NVSwitch, NVLink, PCIe");
  app.add_option("--inter", f.cluster.inter, "links between hosts: 8x400G, 4xHDR, \"TCP 100G\"");
  app.add_option(
         "--busbw", f.cluster.busbw,
         "bus bandwidth that a host reaches at most, in GB/s, for a degraded fabric; 0: no limit")
      ->check(not_below_zero);
  app.add_option(
      "--curve", f.curves,
      "FILE...: measured curves of atoll-busbw --save, which replace the model of the links");
}

void declare_results(CLI::App& app, Flags& f) {
  app.option_defaults()->group("Why a run is slow");
  app.add_option("--explain", f.explain,
                 "folder of a run of atoll-train, or its metrics.json: compare it with the "
                 "prediction, and name causes. The settings are those of the run");
  app.add_option(
      "--trace", f.trace,
      "trace of atoll-train --trace: compare it with the predicted step, stream by stream");
  app.add_option(
         "--measured", f.measured,
         "tokens/s of all GPUs, instead of --explain. The flags must then be those of the run: "
         "--strategy, --micro-batch, --recompute, --mesh")
      ->check(not_below_zero);
  app.add_option("--measured-one-host", f.measured_one_host,
                 "tokens/s of the same settings on one host, which separates slow compute from a "
                 "slow fabric")
      ->check(not_below_zero);
  app.option_defaults()->group("This machine");
  app.add_option(
      "--measure", f.measure,
      "FILE: measure the operations of --model on N processes at once; N is --gpus-per-host, 1 by "
      "default");
  app.add_option(
         "--device", f.device,
         "what --measure measures: host (CPUs), cuda (a GPU for each process), or auto: GPUs "
         "if there are any")
      ->check(CLI::IsMember({"auto", "host", "cuda"}));
  app.add_option("--threads", f.threads, "compute threads of a rank on CPUs, for --measure")
      ->check(above_zero);
  app.add_option("--measure-seconds", f.measure_seconds, "length of the measurement")
      ->check(above_zero);
  app.add_option(
      "--machine", f.machine,
      "FILE of --measure. It replaces --gpu and, if it describes CPUs, --intra, --inter and "
      "--topology");
  app.option_defaults()->group("Results");
  app.add_option("--top", f.top, "lines of the table")->check(above_zero);
  app.add_flag("--growth", f.growth,
               "show tokens/s over the number of hosts, each with its best settings");
  app.add_option("--tokens", f.tokens, "tokens to train on, for hours and cost")
      ->check(not_below_zero);
  app.add_option("--price", f.price, "price of a GPU hour; needs --tokens")->check(not_below_zero);
  app.add_option("--json", f.json, "file for the predictions");
  app.add_option("--html", f.html, "file for a page with table, timeline, memory and growth");
}

// Throws if one of `flags` is given beside `beside`.
void refuse(const CLI::App& app, const char* beside, std::initializer_list<const char*> flags,
            const char* why) {
  if (app.count(beside) == 0) return;
  for (const char* flag : flags)
    require(app.count(flag) == 0, "{} has no effect beside {}: {}", flag, beside, why);
}

}  // namespace

void declare(CLI::App& app, Flags& flags) {
  declare_job(app, flags);
  declare_cluster(app, flags);
  declare_results(app, flags);
  cli::add_common_options(app);
}

void check(const CLI::App& app, const Flags& flags) {
  for (const char* explains : {"--explain", "--measured", "--trace"}) {
    refuse(app, explains, {"--json", "--html", "--growth", "--tokens", "--price", "--top"},
           "one job is explained");
  }
  refuse(app, "--measure", {"--json", "--html", "--growth", "--curve", "--explain"},
         "it only measures");
  require(flags.measure.empty() || flags.dtype != "auto", "--measure needs --dtype bf16 or f32");
  for (const char* flag : {"--device", "--threads", "--measure-seconds"})
    require(app.count(flag) == 0 || !flags.measure.empty(), "{} needs --measure", flag);
  refuse(app, "--global-batch", {"--micro-batches"},
         "the number of micro batches follows from the global batch");
  require(flags.measured_one_host == 0 || flags.measured > 0 || !flags.explain.empty(),
          "--measured-one-host needs --measured or --explain");
  require(flags.price == 0 || flags.tokens > 0, "--price needs --tokens");
}

}  // namespace plan

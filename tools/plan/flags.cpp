#include "plan/flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <initializer_list>

#include "atoll/fsdp.hpp"
#include "atoll/planner.hpp"
#include "atoll/tooling/load.hpp"
#include "cli/cli.hpp"
#include "fail.hpp"
#include "model/config.hpp"

namespace plan {
namespace {

using train::require;

const cli::Check above_zero = cli::number([](double value) { return value > 0; }, "above 0");
const cli::Check not_below_zero = cli::at_least(0);

CLI::Validator strategy_names() {
  std::vector<std::string> names{"auto"};
  for (const auto strategy : atoll::fsdp::every_strategy()) {
    names.emplace_back(atoll::fsdp::name(strategy));
  }
  return CLI::IsMember(names);
}

std::string machine_names() {
  std::vector<std::string> names{"here"};
  for (const atoll::CatalogEntry& entry : atoll::catalog()) names.push_back(entry.name);
  return cli::words_type(names);
}

void declare_job(CLI::App& app, Flags& f) {
  const auto presets = train::preset_names();
  app.option_defaults()->always_capture_default();
  app.option_defaults()->group("The job");
  app.add_option(
         "--model", f.model,
         "preset, path of a config.json, a folder with one, or ORG/NAME[@REVISION] in the Hub's "
         "local cache (HF_HUB_CACHE, HF_HOME); nothing is downloaded")
      ->type_name(cli::words_type({presets.begin(), presets.end()}));
  const auto dimension = [&](const char* flag, std::int64_t& field, const char* what) {
    app.add_option(flag, field, fmt::format("{}; default: as in the model", what))
        ->check(above_zero)
        ->default_str("");
  };
  dimension("--vocab", f.vocab, "tokens of the vocabulary");
  dimension("--layers", f.layers, "layers");
  dimension("--hidden", f.hidden, "width of a layer");
  dimension("--heads", f.heads, "heads of queries");
  dimension("--kv-heads", f.kv_heads, "heads of keys and values (with --heads: as many)");
  dimension("--ffn", f.ffn, "width of the feed-forward network");
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
                 "bf16 or f32, for parameters and activations, or auto: both are tried; default: "
                 "bf16, with --gpu CPU f32")
      ->check(own_words("--dtype"))
      ->check(CLI::IsMember({"bf16", "f32", "auto"}));
  app.add_flag("--fp8", f.fp8,
               "products of the layers in 8-bit floating point, as of atoll-train, at the rate of "
               "the data sheet: no run has measured it");
  app.add_option(
         "--lora-rank", f.lora_rank,
         "train adapters (LoRA) of this rank and freeze everything else; 0 trains the model")
      ->check(not_below_zero);
  app.add_option(
         "--reduce-dtype", f.reduce_dtype,
         "f32 or bf16, for gradients on the wire, or auto: f32 for atoll, --dtype for PyTorch "
         "(the default of its FSDP before 2.15). atoll still sums bf16 gradients in "
         "f32, by an all_to_all, which between hosts over RDMA is slower than a ring of f32")
      ->check(CLI::IsMember({"f32", "bf16", "auto"}));
  app.add_option("--moments", f.moments, "f32 or bf16, for the moments of AdamW")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--strategy", f.strategy,
                 "sharding strategy, as of atoll-train; auto: all are tried")
      ->check(own_words("--strategy"))
      ->check(strategy_names());
  app.add_option(
      "--mesh", f.mesh,
      "RxS, replicate x shard; default: all that suit the hosts. Without --strategy, only "
      "strategies that use this mesh are tried");
  app.add_option("--recompute", f.recompute,
                 "activations recomputed in backward; auto: all are tried")
      ->check(CLI::IsMember({"none", "selective", "full", "auto"}));
  app.add_option(
         "--prefetch", f.prefetch,
         "units to gather ahead of compute, 0 to 8 (one more if the head is tied), or auto: 1, 2 "
         "and 4 are tried")
      ->check(CLI::IsMember({"0", "1", "2", "3", "4", "5", "6", "7", "8", "auto"}));
  app.add_option("--framework", f.framework, "the trainer that is predicted")
      ->check(CLI::IsMember({"atoll", "pytorch-eager", "pytorch-compile"}));
  app.add_option("--attention", f.attention,
                 "fused, or eager: scores are stored, as without a fused kernel")
      ->check(CLI::IsMember({"fused", "eager"}));
}

void declare_cluster(CLI::App& app, Flags& f) {
  app.option_defaults()->group("The cluster");
  app.add_option("--gpu", f.cluster.gpu,
                 "any other with --peak, --memory and --bandwidth; default: that of --topology, or "
                 "H100")
      ->type_name(cli::words_type(atoll::compute_model_names()))
      ->default_str("H100");
  const auto figure = [&](const char* flag, double& field, const char* what,
                          std::vector<Unit> units) {
    app.add_option(flag, field, fmt::format("{} by its data sheet; default: as of --gpu", what))
        ->transform(with_units(std::move(units)))
        ->check(above_zero)
        ->default_str("");
  };
  constexpr double gib_of_gb = 1e9 / (1 << 30);
  figure("--peak", f.cluster.peak_tflops,
         "TFLOP/s of dense products of the GPU in the type of --dtype", {{"tflops", 1}, {"t", 1}});
  figure("--memory", f.cluster.memory_gib, "GiB of memory of the GPU, or of a host with CPUs",
         {{"gib", 1}, {"g", 1}, {"gb", gib_of_gb}});
  figure("--bandwidth", f.cluster.memory_gbyte_s, "GB/s of the memory of the GPU",
         {{"gb/s", 1}, {"tb/s", 1000}});
  app.add_option(
         "--topology", f.topology,
         "FILE that atoll-topo reads, a machine of its catalog such as hgx-h100x16, or here: "
         "supplies the values that no other cluster flag sets")
      ->type_name(machine_names())
      ->option_text("FILE|NAME");
  app.add_option("--hosts", f.hosts, "number of hosts; default: 1, or that of --topology")
      ->check(CLI::Range(0, 1 << 13))
      ->default_str("1");
  app.add_option(
         "--gpus-per-host", f.gpus_per_host,
         "GPUs of a host, or CPU ranks; default: as in --topology or --machine, else 8 (1 for "
         "--measure)")
      ->check(CLI::Range(0, 256))
      ->default_str("8");
  app.add_option(
      "--intra", f.cluster.intra,
      "links inside a host: NVSwitch, NVLink, PCIe, or the GB/s of a ring; default: those "
      "of the GPU's usual board");
  app.add_option("--inter", f.cluster.inter,
                 "links between hosts: 8x400G, 4xHDR, \"TCP 100G\", 8x50GB/s; default: those of "
                 "--topology, or 8x400G")
      ->default_str("8x400G");
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
  app.add_option("--measure", f.measure,
                 "FILE: measure the operations of --model on N processes at once and write their "
                 "times to FILE; "
                 "N is --gpus-per-host, 1 by default");
  app.add_option("--device", f.device,
                 "what --measure measures: cpu or host (CPUs), cuda (a GPU for each process), or "
                 "auto: GPUs if there are any")
      ->check(CLI::IsMember({"auto", "cpu", "host", "cuda"}))
      ->needs("--measure");
  app.add_option("--threads", f.threads, "compute threads of a rank on CPUs")
      ->check(above_zero)
      ->needs("--measure");
  app.add_option("--measure-seconds", f.measure_seconds, "length of the measurement")
      ->check(above_zero)
      ->needs("--measure");
  app.add_option(
      "--machine", f.machine,
      "FILE of --measure. It replaces --gpu and, if it describes CPUs, --intra, --inter and "
      "--topology");
  app.option_defaults()->group("Results");
  app.add_option("--top", f.top, "lines of the table")->check(above_zero);
  app.add_flag("--growth", f.growth,
               "show tokens/s over the number of hosts, each with its best settings; the global "
               "batch grows with them, unless --global-batch fixes it");
  app.add_option("--tokens", f.tokens, "tokens to train on (1e12, 1T), for hours and cost")
      ->transform(with_units({{"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"b", 1e9}, {"t", 1e12}}))
      ->check(not_below_zero);
  app.add_option("--price", f.price, "price of a GPU hour")
      ->check(not_below_zero)
      ->needs("--tokens");
  app.add_option("--json", f.json, "file for the predictions; -: only these, on standard output")
      ->check(file_name);
  app.add_option("--html", f.html, "file for a page with table, timeline, memory and growth")
      ->check(file_name);
  app.add_flag("--quiet", f.quiet, "show no progress of a long search or measurement");
}

// Excludes combinations in which one flag has no effect.
void exclude(CLI::App& app) {
  const auto alone = [&](const char* flag, std::initializer_list<const char*> others) {
    for (const char* other : others) app.get_option(flag)->excludes(app.get_option(other));
  };
  for (const char* explains : {"--explain", "--measured", "--trace"})
    alone(explains, {"--json", "--html", "--growth", "--tokens", "--price", "--top"});
  alone("--measure", {"--json", "--html", "--growth", "--curve", "--explain", "--fp8"});
  alone("--machine", {"--peak", "--memory", "--bandwidth", "--fp8"});
  // The number of micro batches follows from the global batch.
  alone("--global-batch", {"--micro-batches"});
}

}  // namespace

void declare(CLI::App& app, Flags& flags) {
  declare_job(app, flags);
  declare_cluster(app, flags);
  declare_results(app, flags);
  exclude(app);
  cli::add_common_options(app, {},
                          {"--model", "--seq", "--global-batch", "--dtype", "--strategy", "--mesh",
                           "--lora-rank", "--gpu", "--topology", "--hosts", "--gpus-per-host",
                           "--intra", "--inter", "--explain", "--growth", "--json", "--html"});
}

void check(const Flags& flags) {
  require(flags.measure.empty() || flags.dtype != "auto", "--measure needs --dtype bf16 or f32");
  require(flags.measured_one_host == 0 || flags.measured > 0 || !flags.explain.empty(),
          "--measured-one-host needs --measured or --explain");
  require(flags.cluster.peak_tflops == 0 || flags.dtype != "auto",
          "--peak needs --dtype bf16 or f32");
  require(!flags.fp8 || flags.dtype == "bf16", "--fp8 needs --dtype bf16");
  require(flags.framework == "atoll" || (flags.lora_rank == 0 && !flags.fp8),
          "--lora-rank and --fp8 are predicted for --framework atoll only");
  const int figures = (flags.cluster.peak_tflops > 0) + (flags.cluster.memory_gib > 0) +
                      (flags.cluster.memory_gbyte_s > 0);
  require(figures == 0 || figures == 3 || !flags.cluster.gpu.empty() || !flags.topology.empty(),
          "--peak, --memory and --bandwidth: give all three, or the name of the GPU by --gpu");
}

}  // namespace plan

// atoll-plan: predicts speed and memory of a training job, and searches for the best settings.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/planner.hpp"
#include "cli/cli.hpp"
#include "fail.hpp"
#include "json_reader.hpp"
#include "loop/model_source.hpp"
#include "plan/cluster.hpp"
#include "plan/explain.hpp"
#include "plan/flags.hpp"
#include "plan/lanes.hpp"
#include "plan/measure.hpp"
#include "plan/output.hpp"
#include "plan/past_run.hpp"
#include "plan/search.hpp"
#include "report/phase.hpp"

namespace {

namespace fsdp = atoll::fsdp;
using plan::Flags;

constexpr const char* examples =
    "Examples:\n"
    "  atoll-plan --model qwen2.5-7b --gpu H100 --hosts 3 --seq 2048\n"
    "  atoll-plan --model llama-3.1-8b --gpu H200 --hosts 64 --global-batch 2048\n"
    "  atoll-plan --model mistral-7b --gpu H100 --hosts 2 --busbw 46 --strategy full_shard\n"
    "  atoll-plan --model qwen2.5-7b --hosts 3 --strategy full_shard --micro-batch 1 --recompute "
    "full \\\n"
    "      --framework pytorch-eager --measured 31589 --measured-one-host 36382\n\n"
    "Exit status: 0, or 1 after a failure, 2 for wrong flags or values of them.";

train::Recompute recompute_from(const std::string& text) {
  return text == "full"        ? train::Recompute::full
         : text == "selective" ? train::Recompute::selective
                               : train::Recompute::none;
}

std::vector<std::string> presets() {
  const auto names = train::preset_names();
  return {names.begin(), names.end()};
}

// The model that atoll-train finds by the same flags, without weights.
train::ModelConfig named_model(const Flags& f) {
  train::RunOptions options;
  options.model = f.model;
  options.init = "none";
  options.lora_rank = f.lora_rank;
  const std::string near = cli::nearest(f.model, presets());
  train::require(train::is_preset(f.model) || near.empty() || f.model.find('/') != f.model.npos ||
                     std::filesystem::exists(f.model),
                 "--model {}: there is no such preset or file; did you mean {}? Any other shape: "
                 "--layers --hidden --heads --kv-heads --ffn",
                 f.model, near);
  train::ModelConfig model = train::find_model(options, f.vocab).config;
  if (f.vocab > 0) model.vocab = f.vocab;
  train::validate(model);
  return model;
}

// The model with the dimensions that flags give.
train::ModelConfig model_of(const Flags& f) {
  train::ModelConfig model = named_model(f);
  if (f.layers + f.hidden + f.heads + f.kv_heads + f.ffn == 0) return model;
  if (f.layers > 0) {
    model.layers = f.layers;
    model.rotated.clear();
  }
  if (f.hidden > 0) model.hidden = f.hidden;
  if (f.heads > 0) model.heads = f.heads;
  if (f.heads > 0) model.kv_heads = f.heads;
  if (f.kv_heads > 0) model.kv_heads = f.kv_heads;
  if (f.ffn > 0) model.ffn = f.ffn;
  if (f.hidden > 0 || f.heads > 0) {
    train::require(model.hidden % model.heads == 0, "--hidden {}: not a multiple of {} heads",
                   model.hidden, model.heads);
    model.head_dim = model.hidden / model.heads;
  }
  model.name += "-resized";
  train::validate(model);
  return model;
}

// Returns the cluster of --topology, or a default one, as changed by other flags.
plan::ClusterText cluster_text(const Flags& f) {
  plan::ClusterText text =
      f.topology.empty() ? plan::ClusterText() : plan::read_topology(f.topology);
  text.peak_tflops = f.cluster.peak_tflops;
  text.memory_gib = f.cluster.memory_gib;
  text.memory_gbyte_s = f.cluster.memory_gbyte_s;
  const bool is_described = text.peak_tflops > 0;  // without --gpu, all figures are given
  if (f.topology.empty() && !is_described) text.gpu = "H100";
  if (!f.cluster.gpu.empty()) text.gpu = f.cluster.gpu;
  if (!f.cluster.intra.empty()) text.intra = f.cluster.intra;
  if (!f.cluster.gpu.empty() || !f.cluster.intra.empty()) text.links_gbyte_s = 0;
  if (!f.cluster.inter.empty()) {
    text.inter = f.cluster.inter;
    text.inter_source = "--inter";
  }
  if (f.hosts > 0) text.hosts = f.hosts;
  if (f.gpus_per_host > 0) text.ranks_per_host = f.gpus_per_host;
  if (f.gpus_per_host == 0 && f.topology.empty() && plan::has_model(text.gpu) &&
      atoll::find_compute_model(text.gpu).name == "GB200")
    fmt::print(stderr,
               "atoll-plan: warning: {} GB200 on a host, but a tray has 4 and a rack 72: "
               "--gpus-per-host sets it\n",
               text.ranks_per_host);
  text.busbw = f.cluster.busbw;
  train::require(!text.gpu.empty() || is_described,
                 "--topology {}: the file does not name the model of the GPUs: add --gpu",
                 f.topology);
  train::require(f.topology.empty() || text.hosts == 1 || !text.inter.empty(),
                 "--topology {}: no active NIC has a known rate: add --inter", f.topology);
  return text;
}

// Throws if a flag is given that the machine's file replaces.
void check_machine_flags(const Flags& f, const plan::MeasuredMachine& machine) {
  const bool is_gpu = !machine.gpu.empty();
  train::require(f.cluster.gpu.empty() || is_gpu,
                 "--gpu has no effect beside --machine {}: the file describes CPUs", f.machine);
  if (is_gpu && plan::has_model(machine.gpu)) {
    train::require(f.cluster.gpu.empty() || atoll::find_compute_model(f.cluster.gpu).name ==
                                                atoll::find_compute_model(machine.gpu).name,
                   "--gpu {}: --machine {} was measured on {}: leave --gpu out", f.cluster.gpu,
                   f.machine, machine.gpu);
  } else if (is_gpu) {
    train::require(
        !f.cluster.gpu.empty(),
        "--machine {}: measured on {}, of which no data sheet is known: add --gpu with the "
        "most similar GPU, for what was not measured",
        f.machine, machine.gpu);
  }
  for (const auto& [flag, value] : {std::pair{"--intra", &f.cluster.intra},
                                    {"--inter", &f.cluster.inter},
                                    {"--topology", &f.topology}}) {
    train::require(is_gpu || value->empty(),
                   "{} has no effect beside --machine {}, which describes CPUs: --curve describes "
                   "their links",
                   flag, f.machine);
  }
}

// Makes the ranks compute as the machine in the file of --machine.
void use_machine(const Flags& f, const plan::MeasuredMachine& machine, plan::Cluster& cluster) {
  plan::use(machine, cluster);
  cluster.fabric.most_gbyte_s = f.cluster.busbw;
  if (f.gpus_per_host > 0) cluster.ranks_per_host = f.gpus_per_host;
  // One machine may emulate all hosts; then all ranks compute on this machine.
  const bool alike = machine.ranks == cluster.ranks_per_host ||
                     machine.ranks == cluster.hosts * cluster.ranks_per_host;
  if (!machine.gpu.empty() || alike) return;
  // The file has one process's share of the memory, so it is converted to the share of a rank.
  cluster.compute.memory_bytes = machine.memory_bytes * static_cast<std::uint64_t>(machine.ranks) /
                                 static_cast<std::uint64_t>(cluster.ranks_per_host);
  fmt::print(
      stderr,
      "atoll-plan: warning: --machine {}: {} processes measured at once, but {} ranks share a "
      "host; unless each has its own cores, measure again with --gpus-per-host {}\n",
      f.machine, machine.ranks, cluster.ranks_per_host, cluster.ranks_per_host);
}

plan::Job job_of(const Flags& f) {
  plan::Job job;
  plan::MeasuredMachine machine;
  plan::ClusterText cluster = cluster_text(f);
  if (!f.machine.empty()) {
    machine = plan::read_machine(f.machine);
    check_machine_flags(f, machine);
    if (plan::has_model(machine.gpu)) cluster.gpu = machine.gpu;
  }
  const auto known = plan::cluster_of(cluster);
  const std::string unknown = known.unknown.empty() ? "" : known.unknown.front();
  train::require(!unknown.starts_with("intra"),
                 "the rate of {} is unknown for {}: use the GB/s of a ring, as in --intra 300, or "
                 "PCIe, or NVSwitch on boards such as those of H100",
                 unknown, known.cluster.compute.name);
  train::require(unknown.empty(),
                 "the rate of {} is unknown: use a text such as 8x400G, 4xHDR or \"TCP 100G\"",
                 unknown);
  job.cluster = known.cluster;
  if (!f.machine.empty()) use_machine(f, machine, job.cluster);
  if (job.cluster.compute.name == "V100" && f.dtype != "f32")
    fmt::print(stderr, "atoll-plan: warning: V100 has no bf16, so bf16 means f16 here\n");
  for (const std::string& curve : f.curves) plan::add_curve(job.cluster.fabric, curve);
  job.micro_batches = f.micro_batches;
  job.model = model_of(f);
  job.seq = f.seq;
  job.dtype = f.dtype == "auto" ? atoll::DType::bf16 : atoll::dtype_from_name(f.dtype);
  job.moments = atoll::dtype_from_name(f.moments);
  if (f.prefetch != "auto") job.prefetch = std::stoi(f.prefetch);
  job.eager_attention = f.attention == "eager";
  job.fp8 = f.fp8;
  train::require(!f.fp8 || job.cluster.compute.peak_fp8 > 0,
                 "--fp8: atoll-train has no products in fp8 on {}: use an H100 or a later GPU",
                 job.cluster.compute.name);
  job.framework = train::simulated::framework_from_name(f.framework);
  if (f.reduce_dtype != "auto") {
    job.reduce_dtype = atoll::dtype_from_name(f.reduce_dtype);
  } else if (job.framework != train::simulated::Framework::atoll) {
    job.reduce_dtype = job.dtype;
  }
  return job;
}

plan::SearchSpace space_of(const Flags& f) {
  using train::Recompute;
  plan::SearchSpace space;
  space.strategies = fsdp::every_strategy();
  if (f.strategy != "auto") space.strategies = {fsdp::strategy_from_name(f.strategy)};
  space.recomputes = {Recompute::none, Recompute::selective, Recompute::full};
  if (f.recompute != "auto") space.recomputes = {recompute_from(f.recompute)};
  space.micro_batches = {1, 2, 4, 8};
  if (f.micro_batch > 0) space.micro_batches = {f.micro_batch};
  space.global_batch = f.global_batch;
  if (f.prefetch == "auto") space.prefetches = {1, 2, 4};
  if (f.dtype == "auto") space.dtypes = {atoll::DType::bf16, atoll::DType::f32};
  space.reduces_in_dtype = f.reduce_dtype == "auto" && f.framework != "atoll";
  if (!f.mesh.empty()) space.meshes = {atoll::parse_mesh(f.mesh)};
  // The other strategies do not use a mesh with replicas.
  if (f.strategy == "auto" && !f.mesh.empty() && space.meshes.front().replicate > 1)
    space.strategies = {fsdp::Strategy::hybrid_shard, fsdp::Strategy::hybrid_shard_grad};
  return space;
}

// Takes the settings of a past run. Throws Error(invalid_argument) for a flag that differs from the
// run, since the comparison would mislead.
void adopt(Flags& f, const plan::PastRun& past, const CLI::App& app) {
  train::require(!past.on_cpus || !f.machine.empty(),
                 "--explain {}: the run was on CPUs: add --machine FILE, which atoll-plan "
                 "--measure writes on that machine",
                 f.explain);
  if (f.cluster.gpu.empty() && f.topology.empty()) f.cluster.gpu = past.gpu;
  if (!past.settings) return;
  const plan::RunSettings& run = *past.settings;
  const auto set = [&](const char* flag, auto& field, const auto& value) {
    train::require(app.count(flag) == 0 || field == value,
                   "{} {}: the run of --explain had {}; leave the flag out", flag, field, value);
    field = value;
  };
  if (app.count("--model") == 0) {
    train::require(train::is_preset(run.model) || !train::local_model(run.model).empty(),
                   "--explain {}: the model of the run, {}, is neither a preset nor a path or in "
                   "the Hub's cache on this host: add --model",
                   f.explain, train::quoted(run.model));
    f.model = run.model;
  }
  set("--strategy", f.strategy, run.strategy);
  set("--mesh", f.mesh, run.mesh);
  set("--dtype", f.dtype, run.dtype);
  set("--reduce-dtype", f.reduce_dtype, run.reduce_dtype);
  set("--moments", f.moments, run.moments);
  set("--recompute", f.recompute, run.recompute);
  set("--prefetch", f.prefetch, run.prefetch);
  set("--seq", f.seq, run.seq);
  set("--lora-rank", f.lora_rank, run.lora_rank);
  set("--fp8", f.fp8, run.fp8);
  set("--micro-batch", f.micro_batch, run.micro_batch);
  set("--global-batch", f.global_batch, run.global_batch);
  set("--hosts", f.hosts, run.hosts);
  set("--gpus-per-host", f.gpus_per_host, run.ranks_per_host);
  if (past.row_tokens > 0) f.seq = past.row_tokens;
  for (const std::string& setting : run.not_predicted) {
    fmt::print(stderr, "atoll-plan: warning: the run had {}, which the prediction ignores\n",
               setting);
  }
}

// Gives a preset the vocabulary of the run's tokenizer, which the number of parameters determines.
// Changed dimensions would change that number as well, so the preset then stays as it is.
void adopt_vocabulary(const plan::PastRun& past, const Flags& f, train::ModelConfig& model) {
  constexpr std::int64_t most_ids = 1 << 20;
  const bool is_changed = f.layers + f.hidden + f.heads + f.kv_heads + f.ffn > 0;
  if (past.parameters == 0 || f.vocab > 0 || is_changed || !train::is_preset(f.model)) return;
  train::ModelConfig larger = model;
  ++larger.vocab;
  const std::int64_t count = train::parameter_count(model);
  const std::int64_t of_id = train::parameter_count(larger) - count;
  const std::int64_t more = past.parameters - count;
  const std::int64_t vocab = model.vocab + more / of_id;
  if (more % of_id == 0 && vocab > 0 && vocab <= most_ids) model.vocab = vocab;
}

// Throws Error(invalid_argument) if the model has another number of parameters than the run's.
void check_parameters(const plan::PastRun& past, const train::ModelConfig& model) {
  if (past.parameters == 0) return;
  const std::int64_t count = train::parameter_count(model);
  train::require(count == past.parameters,
                 "--model {}: it has {} parameters, but the run had {}: give the model of the run, "
                 "or --vocab",
                 model.name, count, past.parameters);
}

void explain(const Flags& f, const plan::PastRun& past, const std::vector<plan::Candidate>& found) {
  train::require(
      found.size() == 1,
      "--explain, --trace and --measured need the settings of the run: --strategy, --mesh, "
      "--micro-batch, --recompute, --dtype and --prefetch leave {} candidates",
      found.size());
  plan::Measurement measured = past.measured;
  if (f.measured > 0) measured.tokens_per_s = f.measured;
  if (f.measured_one_host > 0) measured.one_host_tokens_per_s = f.measured_one_host;
  const plan::Job& job = found.front().job;
  if (measured.tokens_per_s > 0) fmt::print("{}", plan::to_text(plan::explain(job, measured), job));
  if (f.trace.empty()) return;
  const plan::LaneTimes lanes = plan::read_lanes(f.trace);
  fmt::print("{}",
             plan::to_text(plan::lanes_of(plan::simulate(job, {.trace = true}).trace), lanes));
}

// The largest smaller number of hosts whose ranks divide the global batch, as part of a sentence.
std::string hosts_text(const Flags& f, const plan::Job& job) {
  const std::int64_t of_host =
      job.cluster.ranks_per_host * std::max<std::int64_t>(1, f.micro_batch);
  int hosts = job.cluster.hosts - 1;
  while (hosts > 0 && f.global_batch % (hosts * of_host) != 0) --hosts;
  return hosts > 0 ? fmt::format("; or --hosts {}", hosts) : "";
}

void run(Flags& f, const CLI::App& app) {
  plan::check(f);
  plan::PastRun past;
  if (!f.explain.empty()) {
    past = plan::read_run(f.explain);
    adopt(f, past, app);
  }
  plan::Job job = job_of(f);
  adopt_vocabulary(past, f, job.model);
  check_parameters(past, job.model);
  if (!f.measure.empty()) {
    job.micro_batch = std::max<std::int64_t>(1, f.micro_batch);
    if (f.recompute != "auto") job.recompute = recompute_from(f.recompute);
    plan::measure(job,
                  {std::max(1, f.gpus_per_host), f.threads, f.device, f.measure_seconds, f.quiet},
                  f.measure);
    return;
  }
  const double wire = job.cluster.fabric.inter_gbyte_s;
  train::require(std::isfinite(f.cluster.busbw) && f.cluster.busbw <= wire,
                 "--busbw {}: the NICs of a host have only {} GB/s", f.cluster.busbw, wire);
  plan::SearchSpace space = space_of(f);
  const bool explains = !f.explain.empty() || !f.trace.empty() || f.measured > 0;
  // The mesh that the trainer plans without --mesh.
  if (explains && f.mesh.empty() && f.strategy.starts_with("hybrid") && job.cluster.hosts > 1)
    space.meshes = {{job.cluster.hosts, job.cluster.ranks_per_host}};
  const auto assumptions = plan::assumptions(job, f);
  const bool is_piped = f.json == "-";
  if (!is_piped) fmt::print("{}", plan::to_text(assumptions));
  std::fflush(stdout);
  std::optional<train::PhaseDisplay> display;
  if (!f.quiet) display.emplace(stderr, train::progress_options_for(stderr).surface);
  auto found = plan::search(job, space);
  if (explains) return explain(f, past, found);
  const std::int64_t once = job.ranks() * std::max<std::int64_t>(1, f.micro_batch);
  const std::int64_t below = f.global_batch / once * once;
  train::require(!found.empty() || f.global_batch == below,
                 "--global-batch {}: it is not a multiple of {} ranks times the micro batch; the "
                 "nearest: {}{}{}",
                 f.global_batch, job.ranks(), below > 0 ? fmt::format("{} and ", below) : "",
                 below + once, hosts_text(f, job));
  train::require(
      !found.empty(),
      "--strategy {}: hybrid strategies need several hosts, or an even number of GPUs above 2",
      f.strategy);
  plan::warn_of_curves(f.curves, found);
  plan::warn_of_guesses(found, f);
  plan::Findings findings{.candidates = std::move(found), .assumptions = assumptions};
  findings.remarks = plan::remarks(findings.candidates, f);
  if (f.growth || !f.html.empty())
    findings.scaling = plan::scaling_of(findings.candidates.front(), space);
  display.reset();
  if (!is_piped) plan::print(findings, f);
  if (!f.json.empty()) plan::write_json(findings, f);
  if (!f.html.empty()) plan::write_page(std::move(findings), f);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Predicts tokens/s, MFU, memory and exposed communication of a training job.",
               "atoll-plan");
  app.footer(examples);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return "atoll-plan: " + cli::complaint(*failed, error, plan::foreign_flags()) +
           " (--help-all lists the flags)\n";
  });
  Flags flags;
  try {
    plan::declare(app, flags);
    app.parse(argc, argv);
    const bool is_cpu = plan::has_model(flags.cluster.gpu) &&
                        atoll::find_compute_model(flags.cluster.gpu).name == "CPU";
    if (is_cpu && app.count("--dtype") == 0) flags.dtype = "f32";
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "atoll-plan: {}\n", error.what());
    return 2;
  }
  try {
    run(flags, app);
    return 0;
  } catch (const atoll::Error& error) {
    fmt::print(stderr, "atoll-plan: {}\n", error.what());
    const bool is_usage = error.code() == atoll::ErrorCode::invalid_argument ||
                          error.code() == atoll::ErrorCode::not_found;
    return is_usage ? 2 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "atoll-plan: {}\n", error.what());
    return 1;
  }
}

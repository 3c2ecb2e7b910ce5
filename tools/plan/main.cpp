// atoll-plan: predicts speed and memory of a training job, and searches for the best settings.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "cli/cli.hpp"
#include "cli/complaint.hpp"
#include "fail.hpp"
#include "model/hf_config.hpp"
#include "plan/advice.hpp"
#include "plan/cluster.hpp"
#include "plan/explain.hpp"
#include "plan/lanes.hpp"
#include "plan/measure.hpp"
#include "plan/page.hpp"
#include "plan/past_run.hpp"
#include "plan/rows.hpp"
#include "plan/search.hpp"

namespace {

namespace fsdp = atoll::fsdp;

constexpr const char* examples =
    "Examples:\n"
    "  atoll-plan --model qwen2.5-7b --gpu H100 --hosts 3 --seq 2048\n"
    "  atoll-plan --model llama-3.1-8b --gpu H200 --hosts 64 --global-batch 2048\n"
    "  atoll-plan --model mistral-7b --gpu H100 --hosts 2 --busbw 46 --strategy full_shard\n"
    "  atoll-plan --model qwen2.5-7b --hosts 2 --strategy full_shard --micro-batch 1 --recompute "
    "full \\\n"
    "      --measured 33622 --measured-one-host 36382\n"
    "  atoll-plan --rows jobs.csv --json predictions.json";

struct Flags {
  plan::ClusterText cluster{};
  std::string model = "mistral-7b";
  std::string strategy = "auto", mesh, dtype = "bf16", reduce_dtype = "auto", moments = "f32";
  std::string recompute = "auto", framework = "atoll", rows, json;
  std::int64_t seq = 2048, global_batch = 0, vocab = 0;
  std::int64_t micro_batch = 0;
  std::string prefetch = "1";
  std::size_t top = 10;
  int hosts = 0, gpus_per_host = 0;
  double price = 0, tokens = 0, measured = 0, measured_one_host = 0;
  std::string explain, trace;
  std::string machine, measure, html, topology;
  bool growth = false;
  std::vector<std::string> curves;
  int passes = 1, threads = 1;
  double measure_seconds = 10;
};

void declare_job(CLI::App& app, Flags& f) {
  app.option_defaults()->always_capture_default();
  app.option_defaults()->group("The job");
  app.add_option("--model", f.model, "preset, path of a config.json, or a folder with one");
  app.add_option("--vocab", f.vocab, "tokens of the vocabulary; 0: those of the model")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seq", f.seq, "tokens of a row")->check(CLI::Range(1, 1 << 24));
  app.add_option("--global-batch", f.global_batch,
                 "rows (atoll-train: samples) per step over all ranks; 0: one micro batch per rank")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--micro-batch", f.micro_batch,
                 "rows of a micro batch on each rank; 0 tries 1, 2, 4 and 8")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--micro-batches", f.passes,
                 "micro batches of a rank in a step, without --global-batch")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--dtype", f.dtype, "bf16 or f32, for parameters and activations");
  app.add_option(
      "--reduce-dtype", f.reduce_dtype,
      "f32 or bf16, for gradients on the wire, or auto: f32 for atoll, --dtype for PyTorch "
      "(the default of its FSDP before 2.15)");
  app.add_option("--moments", f.moments, "f32 or bf16, for the moments of AdamW");
  app.add_option("--strategy", f.strategy,
                 "no_shard, shard_optimizer, shard_grad, full_shard, hybrid_shard, "
                 "hybrid_shard_grad, or auto: all are "
                 "tried");
  app.add_option("--mesh", f.mesh, "RxS, replicate x shard; default: all that suit the hosts");
  app.add_option("--recompute", f.recompute, "none, selective, full, or auto: all are tried");
  app.add_option("--prefetch", f.prefetch,
                 "units to gather ahead of compute, or auto: 1, 2 and 4 are tried")
      ->check([](const std::string& text) {
        const bool known = text == "auto" || (text.size() == 1 && text >= "0" && text <= "8");
        return known ? std::string() : "use a number from 0 to 8, or auto";
      });
  app.add_option("--framework", f.framework, "atoll, pytorch-eager or pytorch-compile");
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
      ->check(CLI::Range(0, 1 << 16));
  app.add_option("--gpus-per-host", f.gpus_per_host,
                 "GPUs of a host; default: 8, or that of --topology or --machine")
      ->check(CLI::Range(0, 256));
  app.add_option("--intra", f.cluster.intra, "links inside a host: NVSwitch, NVLink, PCIe");
  app.add_option("--inter", f.cluster.inter, "links between hosts: 8x400G, 4xHDR, \"TCP 100G\"");
  app.add_option("--busbw", f.cluster.busbw,
                 "GB/s that a host really reaches, for a degraded fabric; 0: a healthy one")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--curve", f.curves,
                 "measured curves of atoll-busbw --save, which replace the model of the links");
}

void declare_results(CLI::App& app, Flags& f) {
  app.option_defaults()->group("Why a run is slow");
  app.add_option("--explain", f.explain,
                 "folder of a run of atoll-train, or its metrics.json: compare it with the "
                 "prediction, and name causes. The settings are those of the run");
  app.add_option(
      "--trace", f.trace,
      "trace of atoll-train --trace: compare it with the predicted step, stream by stream");
  app.add_option("--measured", f.measured, "tokens/s of all GPUs, instead of --explain")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--measured-one-host", f.measured_one_host,
                 "tokens/s of the same settings on one host, which separates slow compute from a "
                 "slow fabric")
      ->check(CLI::NonNegativeNumber);
  app.option_defaults()->group("This machine (CPUs)");
  app.add_option(
      "--measure", f.measure,
      "FILE: measure the operations of --model on N processes at once; N is --gpus-per-host, 1 by "
      "default");
  app.add_option("--threads", f.threads, "compute threads of a rank, for --measure")
      ->check(CLI::PositiveNumber);
  app.add_option("--measure-seconds", f.measure_seconds, "length of the measurement")
      ->check(CLI::PositiveNumber);
  app.add_option("--machine", f.machine, "FILE of --measure, instead of --gpu");
  app.option_defaults()->group("Results");
  app.add_option("--top", f.top, "lines of the table");
  app.add_flag("--growth", f.growth, "show tokens/s of the best settings over the number of hosts");
  app.add_option("--tokens", f.tokens, "tokens to train on, for hours and cost")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--price", f.price, "price of a GPU hour")->check(CLI::NonNegativeNumber);
  app.add_option("--rows", f.rows, "CSV file of many jobs; see tools/plan/README.md");
  app.add_option("--json", f.json, "file for the predictions");
  app.add_option("--html", f.html, "file for a page with table, timeline, memory and growth");
  cli::add_common_options(app);
}

train::Recompute recompute_from(const std::string& text) {
  if (text == "none") return train::Recompute::none;
  if (text == "selective") return train::Recompute::selective;
  if (text == "full") return train::Recompute::full;
  train::fail(atoll::ErrorCode::invalid_argument,
              "--recompute {}: use none, selective, full or auto", text);
}

// A preset, a config.json, or a folder with one.
train::ModelConfig model_of(const Flags& f) {
  namespace fs = std::filesystem;
  const fs::path path = f.model;
  if (!fs::exists(path)) return train::preset(f.model, f.vocab);
  train::ModelConfig model =
      train::read_hf_config(fs::is_directory(path) ? path / "config.json" : path);
  if (f.vocab > 0) model.vocab = f.vocab;
  return model;
}

// The cluster of --topology, or a usual one, with what other flags say.
plan::ClusterText cluster_text(const Flags& f) {
  plan::ClusterText text =
      f.topology.empty() ? plan::ClusterText() : plan::read_topology(f.topology);
  if (f.topology.empty()) text.gpu = "H100";
  if (!f.cluster.gpu.empty()) text.gpu = f.cluster.gpu;
  if (!f.cluster.intra.empty()) text.intra = f.cluster.intra;
  if (!f.cluster.inter.empty()) text.inter = f.cluster.inter;
  if (f.hosts > 0) text.hosts = f.hosts;
  if (f.gpus_per_host > 0) text.ranks_per_host = f.gpus_per_host;
  text.busbw = f.cluster.busbw;
  train::require(!text.gpu.empty(),
                 "--topology {}: the file does not name the model of the GPUs: add --gpu",
                 f.topology);
  train::require(f.topology.empty() || text.hosts == 1 || !text.inter.empty(),
                 "--topology {}: no active NIC has a known rate: add --inter", f.topology);
  return text;
}

plan::Job job_of(const Flags& f) {
  plan::Job job;
  const plan::ClusterText cluster = cluster_text(f);
  const auto known = plan::cluster_of(cluster);
  train::require(known.unknown.empty(),
                 "{} is unknown: use a text such as NVSwitch, PCIe, 8x400G or \"TCP 100G\"",
                 known.unknown.empty() ? "" : known.unknown.front());
  job.cluster = known.cluster;
  if (!f.machine.empty()) {
    job.cluster = plan::read_machine(f.machine);
    const int measured = job.cluster.ranks_per_host;
    job.cluster.hosts = cluster.hosts;
    if (f.gpus_per_host > 0) job.cluster.ranks_per_host = f.gpus_per_host;
    // Hosts may be emulated by one machine, on which all ranks compute.
    if (measured != job.cluster.ranks_per_host && measured != job.ranks()) {
      fmt::print(stderr,
                 "atoll-plan: warning: --machine {}: {} processes measured at once, but {} ranks "
                 "share a host; unless each has its own cores, measure again with --gpus-per-host "
                 "{}\n",
                 f.machine, measured, job.cluster.ranks_per_host, job.cluster.ranks_per_host);
    }
  }
  for (const std::string& curve : f.curves) plan::add_curve(job.cluster.fabric, curve);
  job.micro_batches = f.passes;
  job.model = model_of(f);
  job.seq = f.seq;
  job.dtype = atoll::dtype_from_name(f.dtype);
  job.moments = atoll::dtype_from_name(f.moments);
  if (f.prefetch != "auto") job.prefetch = std::stoi(f.prefetch);
  job.framework = train::simulated::framework_from_name(f.framework);
  if (f.reduce_dtype != "auto") {
    job.reduce_dtype = atoll::dtype_from_name(f.reduce_dtype);
  } else if (job.framework != train::simulated::Framework::atoll) {
    job.reduce_dtype = job.dtype;
  }
  return job;
}

plan::SearchSpace space_of(const Flags& f) {
  plan::SearchSpace space;
  if (f.strategy == "auto") {
    space.strategies = fsdp::every_strategy();
  } else {
    space.strategies = {fsdp::strategy_from_name(f.strategy)};
  }
  if (f.recompute == "auto") {
    space.recomputes = {train::Recompute::none, train::Recompute::selective,
                        train::Recompute::full};
  } else {
    space.recomputes = {recompute_from(f.recompute)};
  }
  if (f.micro_batch > 0) {
    space.micro_batches = {f.micro_batch};
  } else {
    space.micro_batches = {1, 2, 4, 8};
  }
  space.global_batch = f.global_batch;
  if (f.prefetch == "auto") space.prefetches = {1, 2, 4};
  if (!f.mesh.empty()) space.meshes = {atoll::parse_mesh(f.mesh)};
  return space;
}

// Ranks and hosts of each kind of group that the candidates' collectives have.
std::set<std::pair<int, int>> groups_of(const std::vector<plan::Candidate>& found) {
  std::set<std::pair<int, int>> groups;
  for (const plan::Candidate& candidate : found) {
    groups.emplace(candidate.job.ranks(),
                   candidate.job.cluster.hosts);  // without a hybrid strategy
    const auto [replicate, shard] = candidate.job.mesh;
    const int on_host = candidate.job.cluster.ranks_per_host;
    const auto hosts_of = [&](int ranks) { return (ranks + on_host - 1) / on_host; };
    groups.emplace(shard, hosts_of(shard));
    groups.emplace(replicate, shard < on_host ? hosts_of(replicate * shard) : replicate);
  }
  return groups;
}

// Warns of curves that no collective of a candidate uses.
void warn_unused(const std::vector<std::string>& curves,
                 const std::vector<plan::Candidate>& found) {
  const auto groups = groups_of(found);
  for (const std::string& curve : curves) {
    atoll::FabricModel only;
    plan::add_curve(only, curve);
    const auto is_used = [&](const atoll::MeasuredTime& time) {
      return groups.contains({time.ranks, time.hosts});
    };
    if (std::ranges::any_of(only.measured, is_used)) continue;
    fmt::print(
        stderr,
        "atoll-plan: warning: --curve {}: no collective uses it, since no group of the meshes "
        "has {} ranks on {} host(s)\n",
        curve, only.measured.empty() ? 0 : only.measured.front().ranks,
        only.measured.empty() ? 0 : only.measured.front().hosts);
  }
}

void print_table(const std::vector<plan::Candidate>& found, const Flags& f) {
  fmt::print("{:<18}{:>8}{:>6}{:>15}  {:<10}{:>12}{:>8}{:>10}{:>10}{:>9}\n", "strategy", "mesh",
             "rows", "micro batches", "recompute", "tokens/s", "MFU", "exposed", "memory", "step");
  const bool tries_prefetch = f.prefetch == "auto";
  const plan::Prediction& first = found.front().prediction;
  std::size_t shown = 0;
  for (const plan::Candidate& candidate : found) {
    if (shown++ == f.top) break;
    const plan::Job& job = candidate.job;
    const plan::Prediction& p = candidate.prediction;
    // Speeds that are closer than this say nothing about the order.
    const bool tied = shown > 1 && first.fits && p.tokens_per_s > 0.97 * first.tokens_per_s;
    const char* const remark = !p.fits ? "  does not fit" : tied ? "  tied with the first" : "";
    fmt::print(
        "{:<18}{:>8}{:>6}{:>15}  {:<10}{:>12.0f}{:>7.1f}%{:>9.1f}%{:>7.1f} GB{:>7.3f} s{}{}\n",
        fsdp::name(job.strategy), fmt::format("{}x{}", job.mesh.replicate, job.mesh.shard),
        job.micro_batch, job.micro_batches, plan::name(job.recompute), p.tokens_per_s, 100 * p.mfu,
        100 * p.exposed_s / p.step_s, static_cast<double>(p.bytes) / 1e9, p.step_s,
        tries_prefetch ? fmt::format("  {} ahead", job.prefetch) : "", remark);
  }
  const plan::Candidate& best = found.front();
  if (!best.prediction.fits) {
    fmt::print("Nothing fits in the {:.1f} GB of a GPU. Changes to the first line:\n",
               static_cast<double>(best.job.cluster.compute.memory_bytes) / 1e9);
    for (const std::string& text : plan::savings(best.job, best.prediction))
      fmt::print("  {}\n", text);
  } else if (const std::string why = plan::reason(found); !why.empty()) {
    fmt::print("{}\n", why);
  }
  if (f.growth) fmt::print("{}", plan::growth(plan::scaling_of(best.job)));
  if (f.tokens > 0 && best.prediction.fits) {
    const double hours = f.tokens / found.front().prediction.tokens_per_s / 3600;
    const double gpu_hours = hours * found.front().job.ranks();
    fmt::print("{:.3g} tokens take {:.1f} hours, {:.0f} GPU hours", f.tokens, hours, gpu_hours);
    if (f.price > 0) fmt::print(", {:.0f} at {} each", gpu_hours * f.price, f.price);
    fmt::print("\n");
  }
}

void write_json(const std::vector<plan::Candidate>& found, const std::string& path) {
  nlohmann::json all = nlohmann::json::array();
  for (const plan::Candidate& candidate : found) {
    const plan::Job& job = candidate.job;
    const plan::Prediction& p = candidate.prediction;
    all.push_back({{"strategy", fsdp::name(job.strategy)},
                   {"replicate", job.mesh.replicate},
                   {"shard", job.mesh.shard},
                   {"micro_batch", job.micro_batch},
                   {"micro_batches", job.micro_batches},
                   {"recompute", plan::name(job.recompute)},
                   {"prefetch", job.prefetch},
                   {"tokens_per_s", p.tokens_per_s},
                   {"step_s", p.step_s},
                   {"mfu", p.mfu},
                   {"exposed_s", p.exposed_s},
                   {"communication_s", p.communication_s},
                   {"memory_bytes", p.bytes},
                   {"fits", p.fits}});
    const std::uint64_t beside = job.cluster.process_bytes;
    if (beside > 0) all.back()["resident_bytes"] = p.bytes + beside;
  }
  std::ofstream file(path);
  file << all.dump(1) << '\n';
  if (!file.flush().good()) train::fail(atoll::ErrorCode::io, "--json: {} cannot be written", path);
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
  if (app.count("--model") == 0) f.model = run.model;
  set("--strategy", f.strategy, run.strategy);
  set("--mesh", f.mesh, run.mesh);
  set("--dtype", f.dtype, run.dtype);
  set("--reduce-dtype", f.reduce_dtype, run.reduce_dtype);
  set("--moments", f.moments, run.moments);
  set("--recompute", f.recompute, run.recompute);
  set("--prefetch", f.prefetch, run.prefetch);
  set("--seq", f.seq, run.seq);
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
      "--micro-batch and --recompute leave {} candidates",
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

void run(Flags& f, const CLI::App& app) {
  if (!f.rows.empty()) {
    train::require(!f.json.empty(), "--rows needs --json FILE for the predictions");
    plan::predict_rows(f.rows, f.json);
    return;
  }
  plan::PastRun past;
  if (!f.explain.empty()) {
    past = plan::read_run(f.explain);
    adopt(f, past, app);
  }
  plan::Job job = job_of(f);
  check_parameters(past, job.model);
  if (!f.measure.empty()) {
    job.micro_batch = std::max<std::int64_t>(1, f.micro_batch);
    if (f.recompute != "auto") job.recompute = recompute_from(f.recompute);
    plan::measure(job, {std::max(1, f.gpus_per_host), f.threads, f.measure_seconds}, f.measure);
    return;
  }
  const double wire = job.cluster.fabric.across_gbyte_s;
  train::require(std::isfinite(f.cluster.busbw) && f.cluster.busbw <= wire,
                 "--busbw {}: the NICs of a host have only {} GB/s", f.cluster.busbw, wire);
  train::require(f.measured_one_host == 0 || f.measured > 0 || !f.explain.empty(),
                 "--measured-one-host needs --measured or --explain");
  train::require(f.price == 0 || f.tokens > 0, "--price needs --tokens");
  const auto found = plan::search(job, space_of(f));
  if (!f.explain.empty() || !f.trace.empty() || f.measured > 0) return explain(f, past, found);
  train::require(!found.empty() || f.global_batch == 0,
                 "--global-batch {}: it is not a multiple of {} ranks times the micro batch",
                 f.global_batch, job.ranks());
  train::require(!found.empty(), "--strategy {}: hybrid strategies need several hosts", f.strategy);
  warn_unused(f.curves, found);
  print_table(found, f);
  if (!f.json.empty()) write_json(found, f.json);
  if (!f.html.empty()) {
    std::ofstream file(f.html);
    file << plan::page(found, plan::scaling_of(found.front().job));
    if (!file.flush().good())
      train::fail(atoll::ErrorCode::io, "--html: {} cannot be written", f.html);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Predicts tokens/s, MFU, memory and exposed communication of a training job.",
               "atoll-plan");
  app.footer(examples);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return "atoll-plan: " + cli::complaint(*failed, error) + " (--help lists the flags)\n";
  });
  Flags flags;
  try {
    declare_job(app, flags);
    declare_cluster(app, flags);
    declare_results(app, flags);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "atoll-plan: {}\n", error.what());
    return 2;
  }
  try {
    run(flags, app);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "atoll-plan: {}\n", error.what());
    return 1;
  }
}

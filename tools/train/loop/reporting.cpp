#include "loop/reporting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "fail.hpp"
#include "loop/checkpoints.hpp"
#include "loop/engine_model.hpp"
#include "loop/exporting.hpp"
#include "loop/model_source.hpp"
#include "loop/run_plan.hpp"
#include "model/params.hpp"
#include "page/page.hpp"
#include "report/files.hpp"
#include "report/log.hpp"
#include "report/warnings.hpp"

namespace train {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

namespace {

// Exit codes of atoll-train for a run that ended well but missed a limit.
constexpr int mfu_gate_exit = 3;
constexpr int memory_gate_exit = 4;

// Compares the run's mean MFU and the most memory of any rank, in bytes, with --min-mfu and
// --max-memory. An unknown MFU misses its limit.
std::vector<MissedGate> missed_gates(const RunOptions& options, std::optional<double> mfu,
                                     std::uint64_t memory) {
  std::vector<MissedGate> missed;
  if (options.min_mfu > 0 && !mfu) {
    missed.push_back(
        {mfu_gate_exit,
         "--min-mfu: no step was measured, so MFU is unknown: the first --untimed-steps "
         "after each start do not count, so run more steps"});
  } else if (options.min_mfu > 0 && *mfu < options.min_mfu) {
    missed.push_back({mfu_gate_exit, fmt::format("--min-mfu: MFU was {:.2f} %, below the limit of "
                                                 "{:.2f} %; report.html shows what limits it",
                                                 100 * *mfu, 100 * options.min_mfu)});
  }
  if (options.max_memory > 0 && memory > options.max_memory) {
    const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1U << 20U); };
    missed.push_back(
        {memory_gate_exit,
         fmt::format("--max-memory: a rank used {:.1f} MiB, above the limit of {:.1f} MiB; the "
                     "memory plan in report.html shows for what",
                     mib(memory), mib(options.max_memory))});
  }
  return missed;
}

}  // namespace

Reporting::Reporting(atoll::World& world, const RunOptions& options, const Setup& setup,
                     fsdp::Engine& engine)
    : world_(world),
      options_(options),
      setup_(setup),
      engine_(engine),
      out_(run_directory(options.out, run_name(options))),
      results_(world) {}

void Reporting::start(std::int64_t first_step, const SpeedBase& base) {
  first_step_ = first_step;
  metrics_.emplace(base);
  if (world_.rank() != 0) return;
  clean_up();
  if (first_step == 0 || resumes_other_folder(options_, out_)) set_aside();
  make_directory(options_.save_checkpoint ? checkpoints_folder(out_) : out_);
  // A resumed run without steps to do keeps the steps.jsonl and run_args.json of the run that did
  // them.
  const bool has_steps = first_step == 0 || first_step < options_.steps;
  log_.emplace(out_ / "steps.jsonl",
               has_steps ? first_step + 1 : std::numeric_limits<std::int64_t>::max());
  auto shown = progress_options_for(stderr);
  shown.total_steps = options_.steps;
  if (options_.quiet) shown.surface = Surface::silent;
  progress_.emplace(stderr, shown);
  serve();
  log_plan();
  if (has_steps) write_arguments();
}

void Reporting::end_line() {
  if (progress_) progress_->finish();
}

// Removes what runs that were killed have left beside the files that this run writes.
void Reporting::clean_up() const {
  std::vector<fs::path> files = export_files(options_);
  if (!options_.trace.empty()) files.emplace_back(options_.trace);
  for (const char* name : {"run_args.json", "config.toml", "config-resumed.toml", "steps.jsonl",
                           "metrics.json", "report.html"}) {
    files.push_back(out_ / name);
  }
  const std::vector<fs::path> removed = remove_left_overs(checkpoints_folder(out_), files);
  if (removed.empty()) return;
  std::string names;
  for (const fs::path& path : removed) names += (names.empty() ? "" : ", ") + path.string();
  log::info("removed what a killed run has left: {}", names);
}

// Moves aside the results of an earlier run that has left no checkpoint.
void Reporting::set_aside() const {
  const fs::path earlier = set_earlier_results_aside(out_);
  if (earlier.empty()) return;
  log::warn("{} has the results of an earlier run without checkpoints: they are now in {}",
            out_.string(), earlier.string());
}

void Reporting::warn_of_batches() const {
  if (options_.global_batch > static_cast<std::int64_t>(setup_.dataset.size())) {
    log::warn(
        "--global-batch {} exceeds the {} samples: a step is an epoch and has no more samples",
        options_.global_batch, setup_.dataset.size());
  }
  if (options_.global_batch < world_.size()) {
    log::warn("--global-batch {}: only {} of {} ranks have a sample in each step",
              options_.global_batch, options_.global_batch, world_.size());
  } else if (options_.micro_batch > (options_.global_batch + world_.size() - 1) / world_.size()) {
    log::warn(
        "--micro-batch {}: a rank has at most {} samples in a step, so the other rows are "
        "padding",
        options_.micro_batch, (options_.global_batch + world_.size() - 1) / world_.size());
  }
}

// How many parameters are trained, if some are frozen: ", 1.20 M (0.5 %) of them trained".
std::string Reporting::trained_part() const {
  const auto all = static_cast<double>(parameter_count(setup_.model));
  const auto frozen = static_cast<double>(frozen_count(setup_.model, options_.freeze));
  if (frozen == 0) return "";
  return fmt::format(", {:.4g} M ({:.2g} %) of them trained,", (all - frozen) / 1e6,
                     100 * (all - frozen) / all);
}

// Logs how the run is set up.
void Reporting::log_plan() const {
  for (const auto& line : setup_.dataset.warnings) log::warn("{}", line);
  for (const auto& line : idle_flags(options_)) log::warn("{}", line);
  if (options_.lora_rank > 0 && !options_.lora_merge && !options_.export_weights.empty() &&
      setup_.weights.empty()) {
    log::warn(
        "--export: the base of the adapters has random weights, which nobody else has: use "
        "--lora-merge, which writes the whole model, or start from weights with --init");
  }
  if (const auto line = unused_weights(setup_.model, setup_.weights); !line.empty()) {
    log::warn("{}", line);
  }
  for (const auto& finding : setup_.mesh.findings()) log::warn("{}", atoll::to_line(finding));
  const auto shape = engine_.sharding();
  log::info("{}: {:.2f} M parameters{} in {}{} on {}, backend {}", setup_.model.name,
            static_cast<double>(parameter_count(setup_.model)) / 1e6, trained_part(),
            options_.dtype, options_.fp8 ? " with products in fp8" : "",
            counted(world_.size(), "rank"), engine_.backend());
  const bool unknown = options_.dry_run && !options_.resume.empty();
  if (first_step_ == 0 && !unknown) {
    log::info("{}", !setup_.starts_trained()
                        ? fmt::format("random weights by --seed {}", options_.seed)
                        : fmt::format("weights of {}", setup_.given));
  }
  log::info("mesh {} ({}); {}: {} of {}", setup_.mesh.to_string(), setup_.mesh.reason(),
            name(setup_.choice.strategy), counted(shape.replicate, "replica"),
            counted(shape.shard, "shard"));
  if (!options_.mesh.empty() && !(setup_.mesh.shape() == shape)) {
    log::warn(
        "--mesh {} has no effect on shards with {}: only hybrid_shard and hybrid_shard_grad "
        "follow the mesh",
        options_.mesh, name(setup_.choice.strategy));
  }
  for (const std::string& why : {setup_.choice.why, setup_.micro_batch_why, setup_.rate_why,
                                 setup_.threads_why, setup_.machine.place.why}) {
    if (!why.empty()) log::info("{}", why);
  }
  if (options_.warmup_ratio > 0) {
    log::info("--warmup-ratio {}: the learning rate rises in the first {} of {} steps",
              options_.warmup_ratio, options_.warmup_steps, options_.steps);
  }
  if (options_.usual_warmup && options_.warmup_steps != RunOptions().warmup_steps &&
      first_step_ == 0) {
    log::info("--warmup-steps {}: the usual {} would take all of the {}", options_.warmup_steps,
              RunOptions().warmup_steps, counted(options_.steps, "step"));
  }
  for (const auto& line : statistics_lines(setup_.dataset)) log::info("{}", line);
  if (setup_.eval) {
    log::info("evaluation on {} of {}",
              counted(static_cast<std::int64_t>(setup_.eval->size()), "sample"),
              setup_.eval->name());
  }
  log::info("{} of {}, {} per step; results in {}",
            counted(static_cast<std::int64_t>(setup_.dataset.size()), "sample"),
            setup_.dataset.name(), options_.global_batch, out_.string());
  warn_of_batches();
  const bool beside = options_.checkpoint_beside && options_.checkpoint_every > 0;
  if (options_.optimizer == "muon" && options_.save_checkpoint && beside) {
    log::info(
        "--optimizer muon: training waits for each checkpoint, because Muon cannot be saved "
        "beside training");
  }
  std::istringstream table(engine_.memory().to_string());
  for (std::string line; std::getline(table, line);) log::info("{}", line);
}

void Reporting::log_dry_run(Batches& batches) const {
  if (world_.rank() != 0) return;
  log_plan();
  // Estimates padding and FLOP of all steps from the first ones.
  const std::int64_t sampled = std::min<std::int64_t>(options_.steps, 64);
  double real = 0, padded = 0, flop = 0;
  StepPlan plan;
  for (std::int64_t index = 0; index < sampled; ++index) {
    plan = batches.step(batches.position(index));
    real += static_cast<double>(plan.real) / static_cast<double>(sampled);
    padded += static_cast<double>(plan.padded) / static_cast<double>(sampled);
    flop += training_flops(setup_.model, plan.lengths) / static_cast<double>(sampled);
  }
  const auto steps = static_cast<double>(options_.steps);
  log::info("a step: {}, {:.0f} tokens and {:.0f} of padding, {:.4g} TFLOP; {} of {} on each rank",
            counted(plan.samples, "sample"), real, padded, flop * 1e-12,
            counted(plan.micro_batches, "micro batch", "micro batches"),
            counted(options_.micro_batch, "row"));
  log::info("{}: {:.2f} epochs, {:.4g} M tokens, {:.4g} PFLOP", counted(options_.steps, "step"),
            steps / static_cast<double>(batches.steps_per_epoch()), steps * real * 1e-6,
            steps * flop * 1e-15);
  const std::uint64_t planned = engine_.memory().total(), available = setup_.memory.bytes;
  if (available > 0 && planned > available) {
    log::warn(
        "the plan does not fit: it needs {:.1f} GB, and a rank of this machine has {:.1f} GB: use "
        "a smaller --micro-batch or --seq, --recompute full, --strategy auto, or more ranks",
        static_cast<double>(planned) / 1e9, static_cast<double>(available) / 1e9);
  }
  log::info("dry run: nothing was trained or written (atoll-plan plans for any number of ranks)");
}

// Writes run_args.json with the choices of the run, and config.toml, which --config reads.
void Reporting::write_arguments() const {
  auto args = to_json(options_);
  args["mesh"] = setup_.mesh.to_string();
  args["world_size"] = world_.size();
  args["threads"] = setup_.machine.threads;
  args["mesh_reason"] = setup_.mesh.reason();
  args["strategy"] = name(setup_.choice.strategy);
  args["strategy_reason"] = setup_.choice.why;
  args["plan"] = run_plan(world_, setup_.mesh, setup_.islands, engine_);
  for (const RunWarning& trap : find_warnings(args, nlohmann::json::object())) {
    // The findings of the mesh are already in the log.
    if (!trap.id.starts_with("mesh_")) log::warn("{}", to_line(trap));
  }
  write_json_atomic(out_ / "run_args.json", args);
  if (options_.config_text.empty()) return;
  // A resumed run keeps the config.toml of its first start.
  std::error_code ignored;
  const bool keeps = first_step_ > 0 && fs::exists(out_ / "config.toml", ignored);
  write_file_atomic(out_ / (keeps ? "config-resumed.toml" : "config.toml"), options_.config_text);
}

// Starts the Prometheus endpoint of --metrics-port.
void Reporting::serve() {
  if (options_.metrics_port == 0) return;
  endpoint_.emplace(EndpointOptions{options_.metrics_address, options_.metrics_port,
                                    run_name(options_), setup_.model.name, options_.steps});
  log::info("figures for Prometheus at http://{}:{}/metrics", options_.metrics_address,
            endpoint_->port());
}

// A log that cannot be written does not end the run.
void Reporting::step(const StepRecord& record) {
  metrics_->add(record);
  if (log_) {
    const bool written =
        results_.attempt("steps.jsonl", [&] { log_->add(record, metrics_->base()); });
    if (!written) log_.reset();
  }
  if (world_.rank() == 0) {
    if (const auto line = loss_watch_.step(record.loss); !line.empty()) {
      end_line();
      log::warn("{}", line);
    }
  }
  if (endpoint_) endpoint_->step(record, metrics_->base());
  if (progress_) progress_->step(record, metrics_->running(), metrics_->bad_steps());
}

// Rank 0 decides for all, because rounding makes MFU differ between ranks. On CPUs, --max-memory
// also limits the memory of the process.
std::vector<MissedGate> Reporting::gates(const Summary& summary, std::int64_t device_bytes,
                                         std::int64_t process_bytes) {
  const bool host = setup_.machine.device().kind() == atoll::DeviceKind::cpu;
  const std::int64_t memory = host ? std::max(device_bytes, process_bytes) : device_bytes;
  const auto missed = missed_gates(options_, summary.speed.mfu, static_cast<std::uint64_t>(memory));
  const std::int64_t mine = missed.empty() ? 0 : missed.front().exit_code;
  const auto code = static_cast<int>(exchange_numbers(world_, "train/gates", mine).front());
  if (world_.rank() == 0 || code == 0) return code == 0 ? std::vector<MissedGate>{} : missed;
  return {{code, "rank 0 missed a limit"}};
}

void Reporting::finish(const Summary& summary, RunInfo info) {
  if (world_.rank() != 0) return;
  end_line();
  if (options_.steps == 0) return;
  if (summary.steps == 0) {  // keep the finished run's metrics.json
    if (first_step_ < options_.steps) return log::warn("no step was run");
    return log::warn(
        "the checkpoint already has all {} steps, so no step was run; raise "
        "--steps to continue",
        options_.steps);
  }
  if (summary.timed_steps > 0) log::info("{}", summary_line(summary.speed));
  const auto shape = engine_.sharding();
  const bool on_gpu = setup_.memory.kind == atoll::DeviceKind::cuda;
  info.run_name = run_name(options_);
  info.model = setup_.model.name;
  info.dataset = options_.data;
  info.tokenizer = setup_.tokenizer->name();
  info.strategy = name(setup_.choice.strategy);
  info.replicate = shape.replicate;
  info.shard = shape.shard;
  info.dtype = options_.dtype;
  info.fp8 = options_.fp8;
  info.gpu = on_gpu ? setup_.machine.device().name() : "";
  info.peak_detail = setup_.machine.peak_detail();
  const auto planned = static_cast<double>(info.planned_memory_bytes);
  const auto measured = static_cast<double>(info.device_memory_bytes);
  log::info(
      "memory per rank: {:.1f} MB planned, {:.1f} MB allocated at peak ({:+.1f} %); {:.1f} MB "
      "resident in the process, shared pages divided among its users",
      planned * 1e-6, measured * 1e-6, 100 * (measured / planned - 1),
      static_cast<double>(info.proportional_memory_bytes) * 1e-6);
  results_.attempt("metrics.json", [&] {
    write_json_atomic(out_ / "metrics.json", metrics_json(info, metrics_->base(), summary));
  });
}

// Logs the known warnings that the figures of the run show, and writes report.html. A failure is a
// warning, because it must not fail a run that has trained.
void Reporting::write_page() const noexcept {
  try {
    const page::RunFiles run = page::read_run(out_);
    const auto known = find_warnings(run.args, nlohmann::json::object());
    for (const RunWarning& trap : find_warnings(run.args, run.metrics)) {
      if (std::ranges::find(known, trap.id, &RunWarning::id) == known.end()) {
        log::warn("{}", to_line(trap));
      }
    }
    log::info("report of the run in {}", page::write_report(out_).string());
  } catch (const std::exception& error) {
    log::warn("no report.html: {}", text_of(error));
  }
}

}  // namespace train

// What a run measures and reports.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "atoll/checkpoint.hpp"
#include "fail.hpp"
#include "loop/model_source.hpp"
#include "loop/run_plan.hpp"
#include "loop/strategy.hpp"
#include "loop/trainer_state.hpp"
#include "model/params.hpp"
#include "page/page.hpp"
#include "report/files.hpp"
#include "report/log.hpp"
#include "report/warnings.hpp"

namespace train {

namespace fsdp = atoll::fsdp;

void Trainer::check_memory() {
  const std::uint64_t planned = engine_.memory().total();
  if (options_.memory_limit == 0 || planned <= options_.memory_limit) return;
  fail(ErrorCode::invalid_argument,
       "--memory-limit: the plan of {} is over {} bytes: use {}, --recompute full, or a smaller "
       "--micro-batch\n{}",
       name(setup_.choice.strategy), options_.memory_limit,
       options_.strategy == "auto" ? "more ranks" : "--strategy auto to find a strategy that fits",
       engine_.memory().to_string());
}

// Counts the device memory allocated outside the engine.
void Trainer::count_activations() {
  engine_.memory().activations =
      activations_->bytes() + ids_.bytes() + figures_.bytes() + setup_.machine.ops->device_bytes();
}

// Logs how the run is set up.
void Trainer::tell_plan() {
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
  log::info("{}: {:.2f} M parameters in {}{} on {} ranks, backend {}", setup_.model.name,
            static_cast<double>(parameter_count(setup_.model)) / 1e6, options_.dtype,
            options_.fp8 ? " with products in fp8" : "", world_.size(), engine_.backend());
  const bool unknown = options_.dry_run && !options_.resume.empty();
  if (first_step_ == 0 && !unknown) {
    log::info("{}", setup_.weights.empty()
                        ? fmt::format("random weights by --seed {}", options_.seed)
                        : fmt::format("weights of {}", setup_.given));
  }
  log::info("mesh {} ({}); {}: {} replicas of {} shards", setup_.mesh.to_string(),
            setup_.mesh.reason(), name(setup_.choice.strategy), shape.replicate, shape.shard);
  if (!options_.mesh.empty() && !(setup_.mesh.shape() == shape)) {
    log::warn(
        "--mesh {} has no effect on shards with {}: only hybrid_shard and hybrid_shard_grad "
        "follow the mesh",
        options_.mesh, name(setup_.choice.strategy));
  }
  if (!setup_.choice.why.empty()) log::info("{}", setup_.choice.why);
  if (!setup_.micro_batch_why.empty()) log::info("{}", setup_.micro_batch_why);
  if (!setup_.threads_why.empty()) log::info("{}", setup_.threads_why);
  if (!setup_.machine.place.why.empty()) log::info("{}", setup_.machine.place.why);
  for (const auto& line : statistics_lines(setup_.dataset)) log::info("{}", line);
  if (setup_.eval) {
    log::info("evaluation on {} samples of {}", setup_.eval->size(), setup_.eval->name());
  }
  log::info("{} samples of {}, {} per step; results in {}", setup_.dataset.size(),
            setup_.dataset.name(), options_.global_batch, out_.string());
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
  const bool beside = options_.checkpoint_beside && options_.checkpoint_every > 0;
  if (options_.optimizer == "muon" && options_.save_checkpoint && beside) {
    log::info(
        "--optimizer muon: training waits for each checkpoint, because Muon cannot be saved "
        "beside training");
  }
  std::istringstream table(engine_.memory().to_string());
  for (std::string line; std::getline(table, line);) log::info("{}", line);
}

void Trainer::tell_dry_run() {
  if (world_.rank() != 0) return;
  tell_plan();
  // The first steps stand for all steps.
  const std::int64_t sampled = std::min<std::int64_t>(options_.steps, 64);
  double real = 0, padded = 0, flop = 0;
  StepPlan plan;
  for (std::int64_t index = 0; index < sampled; ++index) {
    plan = batches_.step(batches_.position(index));
    real += static_cast<double>(plan.real) / static_cast<double>(sampled);
    padded += static_cast<double>(plan.padded) / static_cast<double>(sampled);
    flop += training_flops(setup_.model, plan.lengths) / static_cast<double>(sampled);
  }
  const auto steps = static_cast<double>(options_.steps);
  log::info(
      "a step: {} samples, {:.0f} tokens and {:.0f} of padding, {:.4g} TFLOP; {} micro batches of "
      "{} rows on each rank",
      plan.samples, real, padded, flop * 1e-12, plan.micro_batches, options_.micro_batch);
  log::info("{} steps: {:.2f} epochs, {:.4g} M tokens, {:.4g} PFLOP", options_.steps,
            steps / static_cast<double>(batches_.steps_per_epoch()), steps * real * 1e-6,
            steps * flop * 1e-15);
  log::info("dry run: nothing was trained or written");
}

// Writes run_args.json, with what was chosen for the run, and config.toml, which repeats it.
void Trainer::write_arguments() {
  auto args = to_json(options_);
  args["mesh"] = setup_.mesh.to_string();
  args["world_size"] = world_.size();
  args["threads"] = setup_.machine.threads;
  args["mesh_reason"] = setup_.mesh.reason();
  args["strategy"] = name(setup_.choice.strategy);
  args["strategy_reason"] = setup_.choice.why;
  args["plan"] = run_plan(world_, setup_.mesh, setup_.islands, engine_);
  for (const RunWarning& trap : find_warnings(args, nlohmann::json::object())) {
    // The findings of the mesh have been logged.
    if (!trap.id.starts_with("mesh_")) log::warn("{}", to_line(trap));
  }
  write_json_atomic(out_ / "run_args.json", args);
  if (!options_.config_text.empty()) write_file_atomic(out_ / "config.toml", options_.config_text);
}

// Starts what --metrics-port asks for.
void Trainer::serve() {
  if (options_.metrics_port == 0) return;
  endpoint_.emplace(EndpointOptions{options_.metrics_address, options_.metrics_port,
                                    run_name(options_), setup_.model.name, options_.steps});
  log::info("figures for Prometheus at http://{}:{}/metrics", options_.metrics_address,
            endpoint_->port());
}

// Compares the run with --min-mfu and --max-memory. Rank 0 decides, because MFU differs between
// ranks by rounding. On CPUs a rank's memory contains that of its process.
std::vector<MissedGate> Trainer::gates(const Summary& summary, std::int64_t device_bytes,
                                       std::int64_t process_bytes) {
  const bool host = setup_.machine.device().kind() == atoll::DeviceKind::cpu;
  const std::int64_t memory = host ? std::max(device_bytes, process_bytes) : device_bytes;
  const auto missed = missed_gates({options_.min_mfu, options_.max_memory}, summary.speed.mfu,
                                   static_cast<std::uint64_t>(memory));
  const std::int64_t mine = missed.empty() ? 0 : missed.front().exit_code;
  const auto code = static_cast<int>(exchange_numbers(world_, "train/gates", mine).front());
  if (world_.rank() == 0 || code == 0) return code == 0 ? std::vector<MissedGate>{} : missed;
  return {{code, "rank 0 missed a limit"}};
}

// Fills figures_of_ranks_, in the same order on all ranks. Blocks.
void Trainer::exchange(const RankFigures& mine) {
  constexpr std::uint64_t each = sizeof(RankFigures) / sizeof(double);
  const auto rank = totals_ ? static_cast<std::size_t>(totals_->rank()) : 0;
  const atoll::View whole = figures_.view(atoll::DType::f64);
  const atoll::View part = whole.part(each * rank, each);
  figures_of_ranks_[rank] = mine;
  if (!totals_) return;
  compute_.copy(part.data, &figures_of_ranks_[rank], sizeof(mine));
  totals_->all_gather(part, whole, compute_).wait(compute_);
  compute_.copy(figures_of_ranks_.data(), whole.data, whole.bytes());
  compute_.synchronize();
}

// Records the bytes that collectives carried since the previous call.
void Trainer::count_bytes(StepRecord& record) {
  const auto now = engine_.traffic();
  const auto before = std::exchange(counted_, now);
  const auto count = [&](const char* axis, std::uint64_t bytes) {
    if (bytes > 0) record.axis_bytes[axis] = static_cast<std::int64_t>(bytes);
  };
  count("shard", now.shard_bytes - before.shard_bytes);
  count("secondary", now.secondary_bytes - before.secondary_bytes);
  count("replicate", now.replicate_bytes - before.replicate_bytes);
}

// Completes the record of a step. Blocks until all ranks have finished the step.
void Trainer::measure(StepRecord& record, const StepStart& start, std::int64_t valid_tokens) {
  RankFigures mine;
  mine.enqueue_seconds = start.enqueue_seconds;
  mine.use = meter_.sample();
  mine.save_written = !pending_ || pending_->written() ? 1 : 0;
  mine.stop = static_cast<double>(wanted_stop());
  mine.data_wait_seconds = std::chrono::duration<double>(queue_->take_waited()).count();
  compute_.copy(&mine.loss, activations_->total().data, sizeof(mine.loss));
  compute_.synchronize();  // wait until all compute of the step is complete
  mine.exposed_seconds =
      std::chrono::duration<double>(compute_.exposed_communication() - start.exposed).count();
  // The host may have waited for the data of the next step since then.
  const auto computed = start.computed.ns();
  const auto end = computed ? Clock::time_point(std::chrono::nanoseconds(*computed)) : Clock::now();
  mine.compute_seconds = std::max(0.0, seconds_between(start.time, end) - mine.exposed_seconds);
  atoll::TraceLog log = engine_.scheduler().take_records();
  // Excludes gathers for this step that ran during the previous step.
  const std::int64_t began = start.time.time_since_epoch() / std::chrono::nanoseconds(1);
  mine.communication_seconds =
      static_cast<double>(atoll::communication_ns(log.records, began)) / 1e9;
  double loss = 0;
  const auto ranks = static_cast<double>(world_.size());
  exchange(mine);
  all_written_ = true;
  measured_ = Clock::now();
  record.seconds = seconds_between(start.time, *measured_);
  for (const RankFigures& rank : figures_of_ranks_) {
    loss += rank.loss;
    all_written_ = all_written_ && rank.save_written > 0;
    stop_ = std::max(stop_, static_cast<Stop>(rank.stop));
    record.compute_seconds += rank.compute_seconds / ranks;
    record.enqueue_seconds += rank.enqueue_seconds / ranks;
    record.data_wait_seconds += rank.data_wait_seconds / ranks;
    record.communication_seconds += rank.communication_seconds / ranks;
    record.exposed_comm_seconds += rank.exposed_seconds / ranks;
    record.exposed_worst_seconds = std::max(record.exposed_worst_seconds, rank.exposed_seconds);
    // A rank that starts late measures a shorter step than the ranks that wait for it.
    record.seconds = std::max(record.seconds, rank.compute_seconds + rank.exposed_seconds);
  }
  std::vector<Utilization> uses;
  for (const RankFigures& rank : figures_of_ranks_) uses.push_back(rank.use);
  record.use = combined(uses);
  record.loss = loss / static_cast<double>(std::max<std::int64_t>(valid_tokens, 1));
  record.grad_norm = static_cast<double>(optimizer_->grad_norm());
  record.nonfinite = !std::isfinite(record.loss) || !std::isfinite(record.grad_norm);
  record.skipped = options_.skip_nonfinite && !std::isfinite(record.grad_norm);
  if (tracing_->covers(record.step)) {
    tracing_->add(record.step, std::move(log), start.time, Clock::now());
  }
}

// Tells of a step that is not finite, and sets diverged_ if there are too many of them. All ranks
// have the same loss and norm, and so decide alike.
void Trainer::check_finite(const StepRecord& record) {
  const bool ends = nonfinite_row_.add(record);
  if (!record.nonfinite) return;
  const NonFinite found = find_nonfinite(world_, engine_, *optimizer_, compute_);
  if (progress_) {
    progress_->finish();
    log::warn("{}", nonfinite_row_.warning(record, found));
  }
  weights_finite_ = found.weights.tensors == 0;
  if (ends) diverged_ = nonfinite_row_.ending(record, found);
}

// Writes the line of a step and shows progress. A log that cannot be written does not end the run.
void Trainer::write_line(const StepRecord& record) {
  if (log_) {
    const bool written =
        results_.attempt("steps.jsonl", [&] { log_->add(record, metrics_->base()); });
    if (!written) log_.reset();
  }
  if (endpoint_) endpoint_->step(record, metrics_->base());
  if (progress_) progress_->step(record, metrics_->running(), metrics_->bad_steps());
}

// The process's memory; called once every buffer has been used.
void Trainer::note_memory() { own_memory_ = std::max(own_memory_, proportional_bytes()); }

// Checks --require-gdr, if it is set. Called after the first step, which opens most connections,
// and again at the end.
void Trainer::check_transports() {
  if (totals_ && options_.require_gdr) {
    atoll::require_gpudirect_rdma(world_, totals_->transports());
  }
}

// Logs which counters of network ports rose since `before` was discovered. Collective.
void Trainer::tell_ports(const atoll::Topology& before) {
  const auto findings = atoll::compare_ports(before, atoll::Topology::discover_ports(world_));
  if (!progress_) return;
  for (const auto& finding : findings) {
    if (finding.severity == atoll::Severity::info)
      log::info("{}", atoll::to_line(finding));
    else
      log::warn("{}", atoll::to_line(finding));
  }
}

// Completes the figures of the run, and writes them. Collective.
void Trainer::finish(RunResult& result, double wall_seconds) {
  note_memory();
  const std::string transports =
      totals_ ? atoll::gather_transports(world_, totals_->transports()).to_string() : "";
  const auto most = [&](const char* what, std::int64_t mine) {
    return std::ranges::max(exchange_numbers(world_, what, mine));
  };
  RunInfo info;
  info.transports = transports;
  info.wall_time_s = wall_seconds;
  info.peak_memory_bytes = most("train/peak_memory", peak_resident_bytes());
  info.proportional_memory_bytes = most("train/own_memory", own_memory_);
  count_activations();
  info.planned_memory_bytes = static_cast<std::int64_t>(engine_.memory().total());
  info.device_memory_bytes = most(
      "train/device_memory", static_cast<std::int64_t>(engine_.device().peak_allocated_bytes()));
  // After the measurement of memory. A run that must stop soon has no time for it.
  if (stop_ == Stop::none && !result.steps.empty()) {
    check_peak(peak_, world_, setup_.machine, atoll::dtype_from_name(options_.dtype),
               options_.peak_seconds);
    metrics_->set_peak(peak_.flops, peak_.measured);
  }
  result.summary = metrics_->summary();
  if (!result.steps.empty() && diverged_.empty() && stop_ == Stop::none) {
    result.missed_gates =
        gates(result.summary, info.device_memory_bytes, info.proportional_memory_bytes);
  }
  if (!progress_) return;
  progress_->finish();
  if (options_.steps == 0) return;
  if (result.steps.empty()) {  // keep the finished run's metrics.json
    return log::warn(
        "the checkpoint already has all {} steps, so no step was run; raise "
        "--steps to continue",
        options_.steps);
  }
  write_metrics(result, std::move(info));
}

// Writes metrics.json. `info` has the time and the memory of the run. Rank 0 calls it.
void Trainer::write_metrics(const RunResult& result, RunInfo info) {
  if (result.summary.timed_steps > 0) {
    log::info("{}", summary_line(result.summary.speed));
  }
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
  info.peak_source = peak_.source;
  info.peak_detail = setup_.machine.peak_detail();
  info.checkpoints = saves_;
  info.checkpoint_stall_s = save_stall_ + step_stall_;
  const auto planned = static_cast<double>(info.planned_memory_bytes);
  const auto measured = static_cast<double>(info.device_memory_bytes);
  log::info(
      "memory per rank: {:.1f} MB planned, {:.1f} MB allocated at peak ({:+.1f} %); {:.1f} MB "
      "resident in the process, shared pages divided among its users",
      planned * 1e-6, measured * 1e-6, 100 * (measured / planned - 1),
      static_cast<double>(info.proportional_memory_bytes) * 1e-6);
  results_.attempt("metrics.json", [&] {
    write_json_atomic(out_ / "metrics.json", metrics_json(info, metrics_->base(), result.summary));
  });
}

// Logs the known warnings that the figures of the run show, and writes report.html. A failure is a
// warning, because it must not fail a run that has trained.
void Trainer::report() const noexcept {
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

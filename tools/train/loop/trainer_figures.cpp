// Measures memory, times, bytes and port counters of a run.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "fail.hpp"
#include "loop/strategy.hpp"
#include "loop/trainer.hpp"
#include "report/log.hpp"

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
  const std::uint64_t held =
      activations_
          ? activations_->bytes()
          : Activations::bytes_for(setup_.model, activation_plan(options_, setup_.memory.kind));
  engine_.memory().activations =
      held + ids_.bytes() + exchange_.bytes() + setup_.machine.ops->device_bytes();
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
  mine.save_written = saving_->is_written() ? 1 : 0;
  mine.stop = static_cast<double>(stopping_.wanted());
  mine.data_wait_seconds = std::chrono::duration<double>(queue_->take_waited()).count();
  compute_.copy(&mine.loss, activations_->total().data, sizeof(mine.loss));
  compute_.synchronize();  // wait until all compute of the step is complete
  mine.exposed_seconds =
      std::chrono::duration<double>(compute_.exposed_communication() - start.exposed).count();
  // Takes the end from the stream, because the host may have waited for the next step's data.
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
  const auto all = exchange_.exchange(mine, compute_);
  all_written_ = true;
  measured_ = Clock::now();
  record.seconds = seconds_between(start.time, *measured_);
  for (const RankFigures& rank : all) {
    loss += rank.loss;
    all_written_ = all_written_ && rank.save_written > 0;
    stopping_.decide(std::max(stopping_.decided(), static_cast<Stop>(rank.stop)));
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
  for (const RankFigures& rank : all) uses.push_back(rank.use);
  record.use = combined(uses);
  record.loss = loss / static_cast<double>(std::max<std::int64_t>(valid_tokens, 1));
  record.grad_norm = static_cast<double>(optimizer_->grad_norm());
  record.nonfinite = !std::isfinite(record.loss) || !std::isfinite(record.grad_norm);
  record.skipped = options_.skip_nonfinite && !std::isfinite(record.grad_norm);
  if (tracing_->covers(record.step)) {
    tracing_->add(record.step, std::move(log), start.time, Clock::now());
  }
}

// Logs a step that is not finite, and sets diverged_ if there are too many of them. All ranks have
// the same loss and norm, and so decide alike.
void Trainer::check_finite(const StepRecord& record) {
  const bool ends = nonfinite_row_.add(record);
  if (!record.nonfinite) return;
  const NonFinite found = find_nonfinite(world_, engine_, *optimizer_, compute_);
  if (world_.rank() == 0) {
    reporting_.end_line();
    log::warn("{}", nonfinite_row_.warning(record, found));
  }
  weights_finite_ = found.weights.tensors == 0;
  if (ends) diverged_ = nonfinite_row_.ending(record, found);
}

// The process's memory; called once every buffer has been used.
void Trainer::note_memory() { own_memory_ = std::max(own_memory_, proportional_bytes()); }

// Checks --require-gdr, if it is set. Called after the first step, which opens most connections,
// and again at the end.
void Trainer::check_transports() {
  const auto* const all = exchange_.communicator();
  if (all != nullptr && options_.require_gdr) {
    atoll::require_gpudirect_rdma(world_, all->transports());
  }
}

// Logs which counters of network ports rose since `before` was discovered. Collective.
void Trainer::log_ports(const atoll::Topology& before) {
  const auto findings = atoll::compare_ports(before, atoll::Topology::discover_ports(world_));
  if (world_.rank() != 0) return;
  for (const auto& finding : findings) {
    if (finding.severity == atoll::Severity::info)
      log::info("{}", atoll::to_line(finding));
    else
      log::warn("{}", atoll::to_line(finding));
  }
}

// Completes the figures of the run, and writes them. Collective.
void Trainer::finish(RunResult& result, double wall_seconds) {
  reporting_.end_line();
  note_memory();
  RunInfo info;
  if (const auto* const all = exchange_.communicator()) {
    info.transports = atoll::gather_transports(world_, all->transports()).to_string();
  }
  const auto most = [&](const char* what, std::int64_t mine) {
    return std::ranges::max(exchange_numbers(world_, what, mine));
  };
  info.wall_time_s = wall_seconds;
  info.peak_memory_bytes = most("train/peak_memory", peak_resident_bytes());
  info.proportional_memory_bytes = most("train/own_memory", own_memory_);
  count_activations();
  info.planned_memory_bytes = static_cast<std::int64_t>(engine_.memory().total());
  info.device_memory_bytes = most(
      "train/device_memory", static_cast<std::int64_t>(engine_.device().peak_allocated_bytes()));
  info.checkpoints = saving_->begun();
  info.checkpoint_stall_s = saving_->stall();
  const bool has_time = stopping_.decided() == Stop::none;
  // Memory is measured before, so that it does not include the matrices of check_peak().
  if (has_time && !result.steps.empty()) {
    check_peak(peak_, world_, setup_.machine, atoll::dtype_from_name(options_.dtype),
               options_.peak_seconds);
    reporting_.metrics().set_peak(peak_.flops, peak_.measured);
  }
  info.peak_source = peak_.source;
  const double reached = reporting_.metrics().base().measured_flops;
  if (reached > peak_.measured) {
    const bool is_base = peak_.source == "measured";
    if (is_base) info.peak_source = "steps";
    if (world_.rank() == 0) {
      log::warn(
          "steps were faster than the peak of matrix products that had been measured, so that peak "
          "was too low: {} refers to {:.3g} TFLOP/s per rank now",
          is_base ? "MFU" : "mfu_measured", reached / 1e12);
    }
  }
  result.summary = reporting_.metrics().summary();
  if (has_time && !result.steps.empty() && diverged_.empty()) {
    result.missed_gates =
        reporting_.gates(result.summary, info.device_memory_bytes, info.proportional_memory_bytes);
  }
  reporting_.finish(result.summary, std::move(info));
}

}  // namespace train

#include "loop/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "atoll/flight.hpp"
#include "environment.hpp"
#include "fail.hpp"
#include "loop/checkpoints.hpp"
#include "loop/engine_model.hpp"
#include "loop/exporting.hpp"
#include "loop/fabric_check.hpp"
#include "loop/schedule.hpp"
#include "loop/strategy.hpp"
#include "loop/trainer_state.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

Trainer::Trainer(atoll::World& world, const RunOptions& options)
    : world_(world),
      options_(options),
      setup_(prepare(world, options_)),
      engine_(setup_.mesh, engine_options(options_, setup_.model, setup_.choice.strategy,
                                          setup_.machine.device(), setup_.memory)),
      batches_(setup_.dataset, batch_options(options_, *setup_.tokenizer, setup_.model),
               {world.rank(), world.size()}),
      decoder_(setup_.model, *setup_.machine.ops),
      compute_(engine_.device().stream({.name = "compute"})),
      nonfinite_row_(options.max_skipped),
      results_(world),
      meter_(world.local_size(), std::string(engine_.device().pci_address())) {
  if (world.size() > 1) {
    totals_.emplace(
        atoll::Communicator::open(setup_.mesh.axis("world"), {.name = "totals",
                                                              .backend = options.backend,
                                                              .device = engine_.device(),
                                                              .levels = false}));
  }
  if (options_.check_fabric > 0) {
    check_fabric(world, options_, setup_, options_.check_fabric);
  }
  // Check the limit after each part of the plan, before more is allocated.
  add_units(engine_, setup_.model, options_.freeze);
  const ActivationPlan plan = activation_plan(options_, setup_.memory.kind);
  engine_.memory().activations = bytes_beside_engine(options_, setup_.model, setup_.memory);
  check_memory();
  optimizer_ = make_optimizer(options_, engine_, setup_.mesh, setup_.machine);
  if (options_.ema > 0) {
    averaging_.emplace(engine_, setup_.machine.muon_arithmetic(), options_.ema);
  }
  if (options_.log_norms > 0) {
    norm_log_.emplace(world, engine_, setup_.machine.muon_arithmetic(), options_.log_norms);
  }
  check_memory();
  activations_.emplace(decoder_.make_activations(plan, engine_.device(), compute_));
  ids_ = engine_.device().allocate(3 * static_cast<std::size_t>(plan.max_tokens) *
                                   sizeof(std::int32_t));
  figures_of_ranks_.resize(static_cast<std::size_t>(world.size()));
  figures_ =
      engine_.device().allocate(static_cast<std::size_t>(world.size()) * sizeof(RankFigures));
  count_activations();
  check_memory();
  out_ = run_directory(options_.out, run_name(options_));
  if (options_.dry_run) return;
  start();
  tracing_.emplace(traced_steps(options_, first_step_));
  // Too short a measurement says little about the machine.
  const KnownPeaks known(options_.peak_seconds < 0.25 ? std::filesystem::path()
                                                      : usual_peak_file());
  peak_ = find_peak(world_, setup_.machine, plan.compute, options_.peak_seconds, known);
  metrics_.emplace(SpeedBase{options_.warmup_steps, parameter_count(setup_.model), peak_.flops,
                             peak_.measured, world.size()});
  if (world.rank() == 0) {
    clean_up();
    if (first_step_ == 0 || resumes_other_folder(options_, out_)) set_aside();
    make_directory(options_.save_checkpoint ? checkpoints_folder(out_) : out_);
    log_.emplace(out_ / "steps.jsonl", first_step_ + 1);
    auto shown = progress_options_for(stderr);
    shown.total_steps = options_.steps;
    if (options_.quiet) shown.surface = Surface::silent;
    progress_.emplace(stderr, shown);
    serve();
    tell_plan();
    // A run without a step leaves the record of the steps before.
    if (first_step_ == 0 || first_step_ < options_.steps) write_arguments();
  }
}

// Removes what runs that were killed have left beside the files that this run writes.
void Trainer::clean_up() const {
  std::vector<fs::path> files = export_files(options_);
  if (!options_.trace.empty()) files.emplace_back(options_.trace);
  for (const char* name :
       {"run_args.json", "config.toml", "steps.jsonl", "metrics.json", "report.html"}) {
    files.push_back(out_ / name);
  }
  const std::vector<fs::path> removed = remove_left_overs(checkpoints_folder(out_), files);
  if (removed.empty()) return;
  std::string names;
  for (const fs::path& path : removed) names += (names.empty() ? "" : ", ") + path.string();
  log::info("removed what a killed run has left: {}", names);
}

// Keeps the results of an earlier run that has left no checkpoint.
void Trainer::set_aside() const {
  const fs::path earlier = set_earlier_results_aside(out_);
  if (earlier.empty()) return;
  log::warn("{} has the results of an earlier run without checkpoints: they are now in {}",
            out_.string(), earlier.string());
}

// Loads the weights, and sets the first step and the time limit.
void Trainer::start() {
  same_run_ = same_run(options_, setup_, engine_);
  std::optional<std::int64_t> done;
  if (!options_.resume.empty()) done = resume(world_, options_, setup_, engine_, *optimizer_);
  if (!done) {
    start_weights(options_, setup_, engine_);
    if (averaging_) averaging_->start();
  }
  first_step_ = done.value_or(0);
  has_checkpoint_ = done.has_value();
  if (options_.max_time.empty()) return;
  // A slow disk's rate, until the first save has been measured.
  constexpr double bytes_per_second = 1e8;
  const auto& memory = engine_.memory();
  limit_ = {parse_duration("--max-time", options_.max_time),
            static_cast<double>(memory.parameters + memory.resident + memory.optimizer) /
                bytes_per_second};
}

// After a failure within a step, queued work may still use the members destroyed next.
Trainer::~Trainer() {
  const auto drain = [](atoll::Stream& stream) {
    try {
      stream.synchronize();
    } catch (const std::exception& error) {
      log::debug("while stopping after a failure: {}", error.what());
    }
  };
  drain(compute_);
  for (const auto lane : {atoll::Lane::gather, atoll::Lane::reduce, atoll::Lane::replicate}) {
    drain(engine_.scheduler().stream(lane));
  }
}

// Copies a micro batch to the device.
Batch Trainer::upload(const MicroBatch& batch, int index) {
  // The stream reads staging memory later, so each micro batch of a step has its own.
  if (static_cast<std::size_t>(index) == staging_.size()) {
    staging_.push_back(engine_.device().allocate_staging(ids_.bytes()));
  }
  const std::size_t count = batch.tokens.size();
  auto* next = static_cast<std::int32_t*>(staging_[static_cast<std::size_t>(index)].data());
  const std::int32_t* const first = next;
  for (const auto* ids : {&batch.tokens, &batch.labels, &batch.positions}) {
    next = std::ranges::copy(*ids, next).out;
  }
  compute_.copy(ids_.data(), first, static_cast<std::size_t>(next - first) * sizeof *next);
  const atoll::View ids = ids_.view(atoll::DType::i32);
  return {batch.rows,
          batch.seq,
          ids.part(0, count),
          ids.part(count, count),
          ids.part(2 * count, batch.positions.size()),
          batch.documents};
}

void Trainer::micro_batch(const StepPlan& plan, const MicroBatch& batch, int index) {
  const Batch rows = upload(batch, index);
  const Step step{compute_, rows, *activations_,
                  1.0F / static_cast<float>(std::max<std::int64_t>(plan.valid, 1))};
  if (index == 0) decoder_.begin(step);
  if (!next_pass_) open_pass(plan, index);
  train_micro_batch(engine_, std::move(*next_pass_), decoder_, step);
  next_pass_.reset();
}

// Starts the first gathers of the next micro batch.
void Trainer::open_pass(const StepPlan& plan, int index) {
  next_pass_.emplace(
      engine_.begin({fsdp::PassOptions::Kind::train, index, plan.micro_batches}, compute_));
}

// The blocks of a GPU for updates beside the next forward; 0 if they run before it. On CPUs,
// updates would take the cores of forward.
unsigned Trainer::blocks_beside_forward() {
  if (engine_.device().kind() != atoll::DeviceKind::cuda || compute_of_pass_ <= 0) return 0;
  // With recomputation, backward takes three times as long as forward.
  blocks_beside_ =
      fsdp::blocks_beside_forward(engine_.memory(), compute_of_pass_ / 4, blocks_beside_);
  return *blocks_beside_;
}

StepRecord Trainer::step(std::int64_t index) {
  atoll::Scheduler& scheduler = engine_.scheduler();
  scheduler.set_recording(tracing_->covers(index + 1) ? atoll::Recording::work
                                                      : atoll::Recording::collectives);
  StepStart start{Clock::now(), compute_.exposed_communication()};
  const auto [plan, batches] = std::move(next_);
  StepRecord record;
  record.step = index + 1;
  if (measured_) record.between_seconds = seconds_between(*measured_, start.time);
  record.epoch = plan.position.epoch;
  record.learning_rate = learning_rate(options_, index);
  for (int m = 0; m < plan.micro_batches; ++m) {
    if (m + 1 == plan.micro_batches) {
      optimizer_->update_in_backward(static_cast<float>(record.learning_rate));
    }
    micro_batch(plan, batches[static_cast<std::size_t>(m)], m);
  }
  const bool logs_norms = norm_log_ && norm_log_->due(index + 1);
  const bool passes_next =
      index + 1 < options_.steps && !evaluates_after(index) && !saves_after(index);
  // The average and the norms read the weights, and not in a pass.
  const bool beside = passes_next && !averaging_ && !logs_norms;
  optimizer_->step(static_cast<float>(record.learning_rate), compute_,
                   beside ? blocks_beside_forward() : 0);
  start.computed = compute_.stamp();
  start.enqueue_seconds = seconds_since(start.time);
  count_bytes(record);
  // Gather for the next step during the updates and while waiting for this step's figures.
  if (index + 1 < options_.steps) {
    next_ = queue_->take();
    // No pass may be open during an evaluation or a save.
    if (passes_next) open_pass(next_.plan, 0);
  }
  measure(record, start, plan.valid);
  compute_of_pass_ = record.compute_seconds / plan.micro_batches;
  // A skipped step has not changed the weights, so it does not count for their average.
  if (averaging_ && !record.skipped) averaging_->update(compute_, index + 1);
  record.samples = plan.samples;
  record.valid = plan.valid;
  if (logs_norms) norm_log_->complete(record, compute_);
  record.real = plan.real;
  record.padded = plan.padded;
  record.flops = training_flops(setup_.model, plan.lengths);
  return record;
}

RunResult Trainer::run() {
  try {
    return run_steps();
  } catch (const Error& error) {
    // If writing the results of a diverged run throws, the error must still say that the run
    // diverged.
    const std::string_view text = error.what();
    if (diverged_.empty() || text.find(diverged_) != text.npos) throw;
    fail(error.code(), "{}; {}", diverged_, text);
  }
}

RunResult Trainer::run_steps() {
  const auto ports = atoll::Topology::discover_ports(world_);
  world_.barrier();
  engine_.scheduler().take_records();  // discard records from before the first step
  counted_ = engine_.traffic();
  queue_.emplace(batches_, first_step_, options_.steps);
  if (first_step_ < options_.steps) next_ = queue_->take();
  queue_->take_waited();  // discard the time before the first step
  RunResult result;
  const auto start = Clock::now();
  for (std::int64_t index = first_step_; index < options_.steps; ++index) {
    const auto begin = Clock::now();
    const double stalled = save_stall_;
    atoll::mark_step(world_, index + 1);
    StepRecord record = step(index);
    if (index == first_step_ + 1) tell_signals(seconds_since(begin));
    if (evaluates_after(index)) evaluate(record);
    if (index == first_step_) check_transports();
    // A save beside training takes memory for copies of units.
    if (index == first_step_ || pending_) note_memory();
    metrics_->add(record);
    check_finite(record);
    result.steps.push_back(record);
    write_line(record);
    const bool diverges = !diverged_.empty();
    const bool stops = diverges || stop_ != Stop::none;
    if (stops) next_pass_.reset();  // saving and exporting require that no pass is open
    if (pending_ && (all_written_ || diverges)) finish_save();
    if (diverges) {
      // Without updates in these steps the weights may be of use, unless they were not finite
      // before. An earlier checkpoint is worth more.
      if (options_.save_checkpoint && options_.skip_nonfinite && weights_finite_ &&
          !has_checkpoint_) {
        save(index + 1, true);
      }
      break;
    }
    if (saves_after(index) || (stops && options_.save_checkpoint)) {
      save(index + 1, stops || index + 1 == options_.steps);
    }
    limit_.add_step(seconds_since(begin), save_stall_ - stalled);
    if (stops) break;
  }
  if (pending_) finish_save();
  const bool has_update =
      result.steps.empty() || !std::ranges::all_of(result.steps, &StepRecord::nonfinite);
  if (diverged_.empty() && !has_update) {
    diverged_ = fmt::format(
        "the loss or gradient norm of all {} steps was infinite or NaN: check the weights that the "
        "run started from, and its data",
        result.steps.size());
  }
  // A run that stops after its last step is complete.
  if (first_step_ + static_cast<std::int64_t>(result.steps.size()) == options_.steps) {
    stop_ = Stop::none;
  }
  result.stop = stop_;
  write_results(result, seconds_since(start));
  tell_ports(ports);
  const std::int64_t done = result.steps.empty() ? first_step_ : result.steps.back().step;
  results_.finish(!diverged_.empty() ? diverged_ : why_stopped(done));
  if (!diverged_.empty()) fail(ErrorCode::bad_data, "{}", diverged_);
  if (!result.steps.empty()) check_transports();
  if (stop_ != Stop::none) tell_stop(done);
  return result;
}

bool Trainer::saves_after(std::int64_t index) const {
  if (!options_.save_checkpoint) return false;
  const bool due = options_.checkpoint_every > 0 && (index + 1) % options_.checkpoint_every == 0;
  return due || index + 1 == options_.steps;
}

// If a save fails, the run goes on: the checkpoint before is whole, and a later save may succeed.
void Trainer::save(std::int64_t done, bool at_end) {
  if (pending_) finish_save();
  setup_.folder.check();
  if (averaging_) compute_.synchronize();  // which updates the average
  saving_ = done;
  saving_since_ = Clock::now();
  ++saves_;
  const bool begun = results_.attempt("checkpoint", [&] {
    Extra extra = same_run_;
    extra["step"] = std::to_string(done);
    const fs::path folder = checkpoint_folder(out_, done);
    if (at_end || !options_.checkpoint_beside) {
      optimizer_->save(folder, std::move(extra));
    } else {
      pending_ = optimizer_->save_beside(folder, std::move(extra));
    }
  });
  stalled_by_save_ = seconds_since(saving_since_);
  save_stall_ += stalled_by_save_;
  if (pending_) return;
  limit_.add_save(seconds_since(saving_since_));
  if (begun) keep_newest(done);
}

// Completes the save beside training.
void Trainer::finish_save() {
  const auto begin = Clock::now();
  std::optional<fsdp::PendingSave> pending = std::exchange(pending_, std::nullopt);
  const double of_steps = pending->stalled_seconds();
  const bool saved = results_.attempt("checkpoint", [&] { pending->finish(); });
  const double here = seconds_since(begin);
  stalled_by_save_ += of_steps + here;
  save_stall_ += here;
  step_stall_ += of_steps;
  limit_.add_save(seconds_since(saving_since_));
  if (saved) keep_newest(saving_);
}

// After a save: rank 0 points the link to it and deletes old checkpoints.
void Trainer::keep_newest(std::int64_t done) {
  has_checkpoint_ = true;
  if (world_.rank() != 0) return;
  results_.attempt("old checkpoints", [&] {
    link_newest(out_, done);
    delete_old_checkpoints(out_, options_.keep_last, options_.keep_every);
  });
  if (progress_) progress_->finish();
  log::info("the checkpoint of step {} took {:.2f} s and stalled training for {:.3f} s", done,
            seconds_since(saving_since_), stalled_by_save_);
}

// Why this rank wants to end the run after this step.
Stop Trainer::wanted_stop() const {
  if (stop_requested()) return Stop::signal;
  return limit_.reached(seconds_since(started_)) ? Stop::time : Stop::none;
}

// Open MPI's mpirun kills ranks a second after it has passed on SIGTERM or Ctrl-C, unless told
// otherwise.
void Trainer::tell_signals(double step_seconds) const {
  constexpr double most_seconds = 0.5;  // of a step; a save follows it
  const bool by_mpirun = !variable("OMPI_COMM_WORLD_RANK").empty();
  const bool waits = !variable("OMPI_MCA_odls_base_sigkill_timeout").empty();
  if (world_.rank() != 0 || !by_mpirun || waits || !options_.save_checkpoint ||
      step_seconds < most_seconds)
    return;
  log::info(
      "a step takes {:.1f} s, but mpirun kills ranks 1 s after Ctrl-C or SIGTERM, before they have "
      "saved: send SIGUSR1 to stop, or start with --mca odls_base_sigkill_timeout 600",
      step_seconds);
}

// Why the run ended after `done` steps, before --steps; "" if it did not.
std::string Trainer::why_stopped(std::int64_t done) const {
  if (stop_ == Stop::none) return "";
  return fmt::format("{} has ended the run after step {}",
                     stop_ == Stop::time ? "--max-time " + options_.max_time : "a signal", done);
}

// Tells how to go on after a stop. Without checkpoints nobody can, which is an error.
void Trainer::tell_stop(std::int64_t done) const {
  if (!options_.save_checkpoint) {
    fail(ErrorCode::aborted, "{}, and --no-checkpoint saves nothing", why_stopped(done));
  }
  if (world_.rank() != 0) return;
  log::info(
      "{}, which is saved: start it again with --resume auto{}", why_stopped(done),
      options_.export_weights.empty() ? "" : "; --export writes the model when all steps are done");
}

// Writes what the end of a run leaves, most valuable first. The last checkpoint is saved before.
void Trainer::write_results(RunResult& result, double wall_seconds) {
  setup_.folder.check();
  finish(result, wall_seconds);
  const bool complete = diverged_.empty() && stop_ == Stop::none;
  if (!options_.export_weights.empty() && complete) {
    if (averaging_) {
      compute_.synchronize();  // which updates the average
      averaging_->swap();
    }
    results_.attempt("--export", [&] { export_model(world_, options_, setup_, engine_); });
    if (averaging_) averaging_->swap();
  }
  if (!options_.trace.empty()) {
    results_.attempt("--trace", [&] {
      tracing_->write(setup_.mesh.axis("world"), totals_ ? &*totals_ : nullptr, options_.trace);
    });
  }
  if (world_.rank() == 0 && !result.steps.empty()) report();
}

RunResult run(atoll::World& world, const RunOptions& options, const Inspect& inspect) {
  compare_modes(world, options);
  if (options.show_data > 0) {
    show_data(world, resolved(options));
    return {};
  }
  Trainer trainer(world, resolved(options));
  if (options.dry_run) {
    trainer.tell_dry_run();
    return {};
  }
  try {
    RunResult result = trainer.run();
    if (inspect) inspect(trainer.engine());
    return result;
  } catch (const std::exception& error) {
    world.fail(text_of(error));  // must precede ~Trainer, which would wait for the other ranks
    throw;
  }
}

}  // namespace train

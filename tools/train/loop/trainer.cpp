#include "loop/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "atoll/flight.hpp"
#include "fail.hpp"
#include "loop/checkpoints.hpp"
#include "loop/engine_model.hpp"
#include "loop/exporting.hpp"
#include "loop/fabric_check.hpp"
#include "loop/parameter_groups.hpp"
#include "loop/resume.hpp"
#include "loop/run_source.hpp"
#include "loop/schedule.hpp"
#include "loop/strategy.hpp"
#include "report/log.hpp"
#include "report/phase.hpp"

namespace train {

namespace fsdp = atoll::fsdp;

Trainer::Trainer(atoll::World& world, const RunOptions& options)
    : world_(world),
      options_(options),
      stopping_(options_),
      setup_(prepare(world, options_)),
      engine_(setup_.mesh, engine_options(options_, setup_.model, setup_.choice.strategy,
                                          setup_.machine.device(), setup_.memory)),
      batches_(setup_.dataset, batch_options(options_, *setup_.tokenizer, setup_.model),
               {world.rank(), world.size()}),
      decoder_(setup_.model, *setup_.machine.ops),
      exchange_(setup_.mesh, engine_.device(), options.backend),
      compute_(engine_.device().stream({.name = "compute"})),
      meter_(world.local_size(), std::string(engine_.device().pci_address())),
      nonfinite_row_(options.max_skipped),
      best_(setup_.eval ? fmt::format("{:016x}-{}", setup_.eval->fingerprint(), setup_.eval->size())
                        : ""),
      reporting_(world, options_, setup_, engine_) {
  if (options_.check_fabric > 0) {
    check_fabric(world, options_, setup_, options_.check_fabric);
  }
  make_state();
  if (options_.dry_run) {
    if (options_.resume.empty()) {
      setup_.rate_why = choose_rate(options_, setup_.starts_trained());
    }
  } else if (options_.evaluate || only_exports(options_)) {
    load();
  } else {
    start();
  }
}

// Makes the optimizer and the memory of a step. Checks the limit of memory after each part of the
// plan, before more is allocated.
void Trainer::make_state() {
  add_units(engine_, setup_.model, options_.freeze);
  const ActivationPlan plan = activation_plan(options_, setup_.memory.kind);
  engine_.memory().activations = bytes_beside_engine(options_, setup_.model, setup_.memory);
  check_memory();
  const bool loads_others = options_.resume.empty() || options_.resume == "auto";
  if (!setup_.checkpoint.empty() && loads_others && !options_.dry_run) {
    start_from(options_, setup_, engine_);
  }
  if (options_.dry_run && options_.optimizer == "muon") {
    param_groups(engine_, options_.group);  // checks them
    // An estimate: Muon's states need 4 to 8 bytes, and its buffers of whole matrices some more.
    engine_.memory().optimizer += 3 * engine_.memory().gradients;
  } else if (!options_.evaluate || !options_.resume.empty()) {
    optimizer_ = make_optimizer(options_, engine_, setup_.mesh, setup_.machine);
  }
  if (options_.ema > 0) {
    averaging_.emplace(engine_, setup_.machine.muon_arithmetic(), options_.ema);
  }
  if (options_.log_norms > 0) {
    norm_log_.emplace(world_, engine_, setup_.machine.muon_arithmetic(), options_.log_norms);
  }
  check_memory();
  if (!options_.dry_run) {
    activations_.emplace(decoder_.make_activations(plan, engine_.device(), compute_));
  }
  ids_ = engine_.device().allocate(3 * static_cast<std::size_t>(plan.max_tokens) *
                                   sizeof(std::int32_t));
  count_activations();
  check_memory();
}

// Loads the weights or the checkpoint. Returns what checkpoints of this run record.
nlohmann::json Trainer::load() {
  auto recorded = same_run(options_, setup_, engine_);
  std::optional<Resumed> resumed;
  if (!options_.resume.empty()) resumed = resume(world_, options_, recorded, *optimizer_);
  if (resumed) {
    first_step_ = resumed->done;
    const auto held = [&](const char* name) {
      return resumed->extra.value(name, nlohmann::json());
    };
    setup_.rate_why = resume_rate(options_, held("schedule"), first_step_);
    best_.resume(held("best"), first_step_);
    if (options_.keep_best && !options_.evaluate) {
      const bool is_kept = world_.rank() == 0 && keeps_best(reporting_.folder(), first_step_);
      if (exchange_numbers(world_, "train/best", is_kept ? 1 : 0).front() == 0) best_.not_kept();
    }
  } else {
    require(!options_.evaluate || options_.resume.empty(),
            "--evaluate: --resume {} found no checkpoint in {}", options_.resume,
            reporting_.folder().string());
    if (setup_.checkpoint.empty()) start_weights(options_, setup_, engine_);
    if (averaging_) averaging_->start();
    setup_.rate_why = choose_rate(options_, setup_.starts_trained());
  }
  resumed_ = resumed.has_value();
  recorded["schedule"] = schedule_of(options_);
  recorded["ranks"] = world_.size();
  return recorded;
}

// Loads the weights, and prepares what reports, saves and stops the run.
void Trainer::start() {
  const nlohmann::json recorded = load();
  // The rate of a slow disk, which predicts the time of a save until one has been measured.
  constexpr double bytes_per_second = 1e8;
  const auto& memory = engine_.memory();
  stopping_.set_limit(static_cast<double>(memory.parameters + memory.resident + memory.optimizer) /
                      bytes_per_second);
  saving_.emplace(world_, options_, recorded, best_, *optimizer_, reporting_, stopping_);
  tracing_.emplace(traced_steps(options_, first_step_));
  // The peaks of earlier runs are not used if the measurement is too short to be accurate.
  const KnownPeaks known(options_.peak_seconds < 0.25 ? std::filesystem::path()
                                                      : usual_peak_file());
  peak_ = find_peak(world_, setup_.machine, atoll::dtype_from_name(options_.dtype),
                    options_.peak_seconds, known);
  reporting_.start(first_step_, {options_.untimed_steps, parameter_count(setup_.model), peak_.flops,
                                 peak_.measured, world_.size()});
}

// Waits, because after a failed step queued work may still use the members destroyed next.
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

// Returns how many blocks of a GPU run the updates beside the next forward; 0 if they run before
// it. On CPUs, updates would take cores from forward.
unsigned Trainer::blocks_beside_forward() {
  if (engine_.device().kind() != atoll::DeviceKind::cuda || compute_of_pass_ <= 0) return 0;
  // Forward is a quarter of a pass: with recomputation, backward takes three times as long.
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
      index + 1 < options_.steps && !evaluates_after(index) && !saving_->due_after(index + 1);
  // --ema and --log-norms read the weights between passes, so updates must not run beside a pass.
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
  bool ends = stalls();  // in a run that --early-stopping had ended before
  if (ends) log_stall(first_step_);
  for (std::int64_t index = first_step_; index < options_.steps && !ends; ++index) {
    const auto begin = Clock::now();
    atoll::mark_step(world_, index + 1);
    StepRecord record = [&] {
      const Phase phase(fmt::format("step {}", index + 1), Phase::Kind::repeated);
      return step(index);
    }();
    ends = end_step(record, begin);
    result.steps.push_back(std::move(record));
  }
  saving_->finish();
  const bool has_update =
      result.steps.empty() || !std::ranges::all_of(result.steps, &StepRecord::nonfinite);
  if (diverged_.empty() && !has_update) {
    diverged_ = fmt::format(
        "the loss or gradient norm of all {} steps was infinite or NaN: check the weights that the "
        "run started from, and its data",
        result.steps.size());
  }
  // A run that stops after its last step is complete.
  const auto steps = static_cast<std::int64_t>(result.steps.size());
  if (first_step_ + steps == options_.steps) stopping_.decide(Stop::none);
  result.stop = stopping_.decided();
  write_results(result, seconds_since(start));
  log_ports(ports);
  const std::int64_t done = first_step_ + steps;
  reporting_.results().finish(!diverged_.empty() ? diverged_ : stopping_.reason(done));
  if (!diverged_.empty()) fail(ErrorCode::bad_data, "{}", diverged_);
  if (steps > 0) check_transports();
  stopping_.log_reason(done, world_.rank());
  return result;
}

// Evaluates, reports and saves after a step. Returns whether the run ends with it.
bool Trainer::end_step(StepRecord& record, Clock::time_point begin) {
  const std::int64_t done = record.step;
  const double stalled = saving_->stall_between_steps();
  if (done == first_step_ + 2 && world_.rank() == 0) stopping_.log_signals(seconds_since(begin));
  const bool is_best = evaluates_after(done - 1) && evaluate(record);
  if (done == first_step_ + 1) check_transports();
  // A save beside training takes memory for copies of units, so memory is measured then too.
  if (done == first_step_ + 1 || saving_->is_beside()) note_memory();
  check_finite(record);
  reporting_.step(record);
  const bool diverges = !diverged_.empty();
  const bool stops = diverges || stopping_.decided() != Stop::none || stalls();
  if (stops) next_pass_.reset();  // saving and exporting require that no pass is open
  if (all_written_ || diverges) saving_->finish();
  if (diverges) {
    // Without an earlier checkpoint, saves the weights, which the skipped steps have not changed,
    // if they are finite.
    const bool has_checkpoint = resumed_ || saving_->has_checkpoint();
    if (options_.save_checkpoint && options_.skip_nonfinite && weights_finite_ && !has_checkpoint) {
      save(done, true);
    }
    return true;
  }
  const bool keeps = options_.save_checkpoint && (stops || (is_best && options_.keep_best));
  if (saving_->due_after(done) || keeps) {
    save(done, stops || done == options_.steps, is_best && options_.keep_best);
  }
  if (stalls()) log_stall(done);
  stopping_.limit().add_step(seconds_since(begin), saving_->stall_between_steps() - stalled);
  return stops;
}

void Trainer::log_stall(std::int64_t done) {
  if (world_.rank() != 0) return;
  reporting_.end_line();
  const std::string why = best_.loss()
                              ? fmt::format("the evaluation of step {} has the lowest loss, {:.4f}",
                                            best_.step(), *best_.loss())
                              : "no evaluation had a loss that is a number";
  log::info(
      "--early-stopping {}: {}, so the run ends after step {}; a larger number and --resume auto "
      "continue it",
      options_.early_stopping, why, done);
}

void Trainer::save(std::int64_t done, bool at_end, bool is_best) {
  saving_->finish();
  setup_.folder.check();
  if (averaging_) compute_.synchronize();  // waits for the update of the average
  saving_->save(done, at_end, is_best);
}

void Trainer::export_weights() {
  if (averaging_) {
    compute_.synchronize();  // waits for the update of the average
    averaging_->swap();
  }
  export_model(world_, options_, setup_, engine_);
  if (averaging_) averaging_->swap();
}

// Writes the results at the end of a run, most valuable first, after the last checkpoint.
void Trainer::write_results(RunResult& result, double wall_seconds) {
  setup_.folder.check();
  finish(result, wall_seconds);
  const bool complete = diverged_.empty() && stopping_.decided() == Stop::none;
  if (!options_.export_weights.empty() && complete) {
    reporting_.results().attempt("--export", [&] { export_weights(); });
  } else if (complete && options_.save_checkpoint && world_.rank() == 0) {
    const std::filesystem::path best = reporting_.folder() / "best";
    log::info(
        "`atoll-train export {} FOLDER` writes the {} in Hugging Face's format",
        (options_.keep_best && std::filesystem::exists(best) ? best : reporting_.folder()).string(),
        options_.lora_rank > 0 && !options_.lora_merge
            ? "adapters, and with --lora-merge the model,"
            : "model");
  }
  if (!options_.trace.empty()) {
    reporting_.results().attempt("--trace", [&] {
      tracing_->write(setup_.mesh.axis("world"), exchange_.communicator(), options_.trace);
    });
  }
  if (world_.rank() == 0 && !result.steps.empty()) reporting_.write_page();
}

RunResult run(atoll::World& world, const RunOptions& options, const Inspect& inspect) {
  compare_modes(world, options);
  if (options.show_data > 0) {
    show_data(world, resolved(options));
    return {};
  }
  Trainer trainer(world, resolved(options));
  if (options.dry_run) {
    trainer.log_dry_run();
    return {};
  }
  try {
    if (options.evaluate) {
      trainer.print_evaluation();
      return {};
    }
    RunResult result;
    if (only_exports(options)) {
      trainer.export_weights();
    } else {
      result = trainer.run();
    }
    if (inspect) inspect(trainer.engine());
    return result;
  } catch (const std::exception& error) {
    world.fail(text_of(error));  // must precede ~Trainer, which would wait for the other ranks
    throw;
  }
}

}  // namespace train

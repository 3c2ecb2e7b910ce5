#include "loop/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "atoll/checkpoint.hpp"
#include "atoll/flight.hpp"
#include "data/batches.hpp"
#include "fail.hpp"
#include "loop/engine_model.hpp"
#include "loop/machine.hpp"
#include "loop/optimizer.hpp"
#include "loop/setup.hpp"
#include "loop/tracing.hpp"
#include "report/files.hpp"
#include "report/log.hpp"
#include "report/metrics_json.hpp"
#include "report/peak_memory.hpp"
#include "report/progress.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A rank's figures of one step, exchanged as f64.
struct RankFigures {
  double loss = 0;  // loss summed over the rank's tokens that have a valid label
  double compute_seconds = 0;
  double enqueue_seconds = 0;
  double communication_seconds = 0;
  double exposed_seconds = 0;
};

struct StepStart {
  Clock::time_point time;
  // Exposed communication of all steps before this one.
  std::chrono::nanoseconds exposed;
  double enqueue_seconds = 0;  // host time until the whole step was enqueued
};

class Trainer {
 public:
  Trainer(atoll::World& world, const RunOptions& options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer();
  RunResult run();
  fsdp::Engine& engine() noexcept { return engine_; }

 private:
  void check_memory();
  void count_activations();
  void announce();
  StepRecord step(std::int64_t index);
  void micro_batch(const StepPlan& plan, const MicroBatch& batch, int index);
  void open_pass(const StepPlan& plan, int index);
  void exchange(const RankFigures& mine);
  void measure(StepRecord& record, const StepStart& start, std::int64_t valid_tokens);
  void count_bytes(StepRecord& record);
  void note_memory();
  void check_transports();
  void tell_ports(const atoll::Topology& before);
  void finish(RunResult& result, double wall_seconds);

  atoll::World& world_;
  RunOptions options_;
  Setup setup_;
  fsdp::Engine engine_;
  Batches batches_;
  Decoder decoder_;
  std::unique_ptr<RunOptimizer> optimizer_;
  std::optional<Activations> activations_;
  atoll::Buffer ids_;  // tokens, labels and, for packed rows, positions of a micro batch
  atoll::Buffer figures_;
  std::vector<RankFigures> figures_of_ranks_;  // host copy of figures_
  std::vector<atoll::Buffer> staging_;         // token ids of each micro batch of the step
  // The stream is destroyed before the members above, because its queued work may use them.
  atoll::Stream compute_;
  // Communicator for the totals of a step. It does not exist in a job of one rank, which then needs
  // no backend.
  std::optional<atoll::Communicator> totals_;
  StepPlan next_plan_;
  // Pass of the next step, opened early so that its gathers overlap this step.
  std::optional<fsdp::Pass> next_pass_;
  fsdp::Engine::Traffic counted_;  // traffic of the steps counted so far
  std::int64_t own_memory_ = 0;
  std::int64_t first_step_ = 0;
  std::optional<Tracing> tracing_;
  std::optional<Metrics> metrics_;
  fs::path out_;
  std::optional<StepLog> log_;        // exists only on rank 0
  std::optional<Progress> progress_;  // exists only on rank 0
};

Trainer::Trainer(atoll::World& world, const RunOptions& options)
    : world_(world),
      options_(options),
      setup_(prepare(world, options)),
      engine_(setup_.mesh, engine_options(options, setup_.model, setup_.choice.strategy,
                                          setup_.machine.device(), setup_.memory)),
      batches_(setup_.dataset, batch_options(options, *setup_.tokenizer),
               {world.rank(), world.size()}),
      decoder_(setup_.model, *setup_.machine.ops),
      compute_(engine_.device().stream({.name = "compute"})) {
  if (world.size() > 1) {
    totals_.emplace(atoll::Communicator::open(
        setup_.mesh.axis("world"),
        {.name = "totals", .backend = options.backend, .device = engine_.device()}));
  }
  // Check the limit after each part of the plan, before more is allocated.
  add_units(engine_, setup_.model, options_.freeze);
  const ActivationPlan plan = activation_plan(options_, setup_.memory.kind);
  engine_.memory().activations = bytes_beside_engine(options_, setup_.model, setup_.memory);
  check_memory();
  optimizer_ = make_optimizer(options_, engine_, setup_.mesh, setup_.machine);
  check_memory();
  activations_.emplace(decoder_.make_activations(plan, engine_.device(), compute_));
  ids_ = engine_.device().allocate(3 * static_cast<std::size_t>(plan.max_tokens) *
                                   sizeof(std::int32_t));
  figures_of_ranks_.resize(static_cast<std::size_t>(world.size()));
  figures_ =
      engine_.device().allocate(static_cast<std::size_t>(world.size()) * sizeof(RankFigures));
  count_activations();
  check_memory();
  first_step_ = start_weights(options_, setup_, engine_, *optimizer_);
  tracing_.emplace(traced_steps(options_, first_step_));
  out_ = run_directory(options_.out, run_name(options_));
  const double peak = setup_.machine.matrix_peak(world_, plan.compute, options_.peak_seconds);
  metrics_.emplace(
      SpeedBase{options_.warmup_steps, parameter_count(setup_.model), peak, world.size()});
  if (world.rank() == 0) {
    make_directory(out_);
    log_.emplace(out_ / "steps.jsonl", first_step_ + 1);
    auto shown = progress_options_for(stderr);
    shown.total_steps = options_.steps;
    if (options_.quiet) shown.surface = Surface::silent;
    progress_.emplace(stderr, shown);
    announce();
  }
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
  for (const auto lane : {atoll::Lane::gather, atoll::Lane::reduce, atoll::Lane::outer}) {
    drain(engine_.scheduler().stream(lane));
  }
}

void Trainer::check_memory() {
  const std::uint64_t planned = engine_.memory().total();
  if (options_.memory_limit == 0 || planned <= options_.memory_limit) return;
  fail(ErrorCode::invalid_argument,
       "--memory-limit: the plan of {} is over {} bytes: use --strategy auto to find a "
       "strategy that fits, --recompute full, or a smaller --micro-batch\n{}",
       name(setup_.choice.strategy), options_.memory_limit, engine_.memory().to_string());
}

// Counts the device memory allocated outside the engine.
void Trainer::count_activations() {
  engine_.memory().activations =
      activations_->bytes() + ids_.bytes() + figures_.bytes() + setup_.machine.ops->device_bytes();
}

void Trainer::announce() {
  for (const auto& line : setup_.dataset.warnings) log::warn("{}", line);
  for (const auto& finding : setup_.mesh.findings()) log::warn("{}", atoll::to_line(finding));
  const auto shape = engine_.sharding();
  log::info("{}: {:.2f} M parameters in {} on {} ranks, backend {}", setup_.model.name,
            static_cast<double>(parameter_count(setup_.model)) / 1e6, options_.dtype, world_.size(),
            engine_.backend());
  log::info("mesh {} ({}); {}: {} replicas of {} shards", setup_.mesh.to_string(),
            setup_.mesh.reason(), name(setup_.choice.strategy), shape.replicate, shape.shard);
  if (!setup_.choice.why.empty()) log::info("{}", setup_.choice.why);
  if (!setup_.machine.place.why.empty()) log::info("{}", setup_.machine.place.why);
  log::info("{} samples of {}, {} per step; results in {}", setup_.dataset.size(),
            setup_.dataset.name(), options_.global_batch, out_.string());
  std::istringstream table(engine_.memory().to_string());
  for (std::string line; std::getline(table, line);) log::info("{}", line);
  auto args = to_json(options_);
  args["mesh"] = setup_.mesh.to_string();
  args["world_size"] = world_.size();
  args["threads"] = setup_.machine.threads;
  args["mesh_reason"] = setup_.mesh.reason();
  args["strategy"] = name(setup_.choice.strategy);
  args["strategy_reason"] = setup_.choice.why;
  write_json_atomic(out_ / "run_args.json", args);
}

void Trainer::micro_batch(const StepPlan& plan, const MicroBatch& batch, int index) {
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
  const Batch rows{batch.rows,
                   batch.seq,
                   ids.part(0, count),
                   ids.part(count, count),
                   ids.part(2 * count, batch.positions.size()),
                   batch.documents};
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
  count("inner", now.inner_bytes - before.inner_bytes);
  count("replicate", now.replicate_bytes - before.replicate_bytes);
}

// Completes the record of a step. Blocks until all ranks have finished the step.
void Trainer::measure(StepRecord& record, const StepStart& start, std::int64_t valid_tokens) {
  RankFigures mine;
  mine.enqueue_seconds = start.enqueue_seconds;
  compute_.copy(&mine.loss, activations_->total().data, sizeof(mine.loss));
  compute_.synchronize();  // wait until all compute of the step is complete
  mine.exposed_seconds =
      std::chrono::duration<double>(compute_.exposed_communication() - start.exposed).count();
  mine.compute_seconds = std::max(0.0, seconds_since(start.time) - mine.exposed_seconds);
  atoll::TraceLog log = engine_.scheduler().take_records();
  // Excludes gathers for this step that ran during the previous step.
  const std::int64_t began = start.time.time_since_epoch() / std::chrono::nanoseconds(1);
  mine.communication_seconds =
      static_cast<double>(atoll::communication_ns(log.records, began)) / 1e9;
  double loss = 0;
  const auto ranks = static_cast<double>(world_.size());
  exchange(mine);
  record.seconds = seconds_since(start.time);
  for (const RankFigures& rank : figures_of_ranks_) {
    loss += rank.loss;
    record.compute_seconds += rank.compute_seconds / ranks;
    record.enqueue_seconds += rank.enqueue_seconds / ranks;
    record.communication_seconds += rank.communication_seconds / ranks;
    record.exposed_comm_seconds += rank.exposed_seconds / ranks;
    record.exposed_worst_seconds = std::max(record.exposed_worst_seconds, rank.exposed_seconds);
    // A rank that starts late measures a shorter step than the ranks that wait for it.
    record.seconds = std::max(record.seconds, rank.compute_seconds + rank.exposed_seconds);
  }
  record.loss = loss / static_cast<double>(std::max<std::int64_t>(valid_tokens, 1));
  record.grad_norm = static_cast<double>(optimizer_->grad_norm());
  if (tracing_->covers(record.step)) {
    tracing_->add(record.step, std::move(log), start.time, Clock::now());
  }
}

StepRecord Trainer::step(std::int64_t index) {
  atoll::Scheduler& scheduler = engine_.scheduler();
  scheduler.set_recording(tracing_->covers(index + 1) ? atoll::Recording::work
                                                      : atoll::Recording::collectives);
  StepStart start{Clock::now(), compute_.exposed_communication()};
  const StepPlan plan = std::move(next_plan_);
  StepRecord record;
  record.step = index + 1;
  record.epoch = plan.position.epoch;
  record.learning_rate = learning_rate(options_, index);
  for (int m = 0; m < plan.micro_batches; ++m) {
    if (m + 1 == plan.micro_batches) {
      optimizer_->update_in_backward(static_cast<float>(record.learning_rate));
    }
    micro_batch(plan, batches_.micro_batch(plan, m), m);
  }
  optimizer_->step(static_cast<float>(record.learning_rate), compute_);
  start.enqueue_seconds = seconds_since(start.time);
  count_bytes(record);
  // Gather for the next step during the updates and while waiting for this step's figures.
  if (index + 1 < options_.steps) {
    next_plan_ = batches_.step(batches_.position(index + 1));
    open_pass(next_plan_, 0);
  }
  measure(record, start, plan.valid);
  record.samples = plan.samples;
  record.valid = plan.valid;
  record.real = plan.real;
  record.padded = plan.padded;
  record.flops = training_flops(setup_.model, plan.lengths);
  return record;
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

RunResult Trainer::run() {
  const auto ports = atoll::Topology::discover_ports(world_);
  world_.barrier();
  engine_.scheduler().take_records();  // discard records from before the first step
  counted_ = engine_.traffic();
  next_plan_ = batches_.step(batches_.position(first_step_));
  RunResult result;
  const auto start = Clock::now();
  for (std::int64_t index = first_step_; index < options_.steps; ++index) {
    atoll::mark_step(world_, index + 1);
    const StepRecord record = step(index);
    if (index == first_step_) {
      note_memory();
      check_transports();
    }
    metrics_->add(record);
    result.steps.push_back(record);
    if (log_) log_->add(record, metrics_->base());
    if (progress_) progress_->step(record, metrics_->running());
    const bool last = index + 1 == options_.steps;
    const bool due = options_.checkpoint_every > 0 && (index + 1) % options_.checkpoint_every == 0;
    if (options_.save_checkpoint && (last || due)) {
      optimizer_->save(out_ / "checkpoint", {{"step", std::to_string(index + 1)}});
    }
  }
  finish(result, seconds_since(start));
  tell_ports(ports);
  if (!options_.trace.empty()) {
    tracing_->write(setup_.mesh.axis("world"), totals_ ? &*totals_ : nullptr, options_.trace);
  }
  if (!result.steps.empty()) check_transports();
  return result;
}

void Trainer::finish(RunResult& result, double wall_seconds) {
  result.summary = metrics_->summary();
  note_memory();
  const std::string transports =
      totals_ ? atoll::gather_transports(world_, totals_->transports()).to_string() : "";
  const auto most = [&](const char* what, std::int64_t mine) {
    return std::ranges::max(exchange_numbers(world_, what, mine));
  };
  const std::int64_t peak = most("train/peak_memory", peak_resident_bytes());
  const std::int64_t own = most("train/own_memory", own_memory_);
  count_activations();
  const auto planned = static_cast<std::int64_t>(engine_.memory().total());
  const std::int64_t measured = most(
      "train/device_memory", static_cast<std::int64_t>(engine_.device().peak_allocated_bytes()));
  // After the measurement, because the memory plan excludes the export's memory.
  if (!options_.export_weights.empty()) {
    fsdp::export_weights(options_.export_weights, engine_, atoll::DType::f32,
                         [&](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
                           return hf_name(unit.name(), param.name);
                         });
  }
  if (!progress_) return;
  progress_->finish();
  if (result.steps.empty()) {  // keep the finished run's metrics.json
    return log::warn(
        "the checkpoint already has all {} steps, so no step was run; raise "
        "--steps to continue",
        options_.steps);
  }
  if (result.summary.timed_steps > 0) {
    log::info("{}", summary_line(result.summary.speed));
  }
  const auto shape = engine_.sharding();
  const RunInfo info{.run_name = run_name(options_),
                     .model = setup_.model.name,
                     .dataset = options_.data,
                     .tokenizer = std::string(setup_.tokenizer->name()),
                     .strategy = std::string(name(setup_.choice.strategy)),
                     .replicate = shape.replicate,
                     .shard = shape.shard,
                     .dtype = options_.dtype,
                     .peak_source = setup_.machine.peak_source(),
                     .transports = transports,
                     .peak_memory_bytes = peak,
                     .planned_memory_bytes = planned,
                     .device_memory_bytes = measured,
                     .proportional_memory_bytes = own,
                     .wall_time_s = wall_seconds};
  log::info(
      "memory per rank: {:.1f} MB planned, {:.1f} MB allocated at peak ({:+.1f} %); {:.1f} MB "
      "resident in the process, shared pages divided among its users",
      static_cast<double>(planned) * 1e-6, static_cast<double>(measured) * 1e-6,
      100 * (static_cast<double>(measured) / static_cast<double>(planned) - 1),
      static_cast<double>(own) * 1e-6);
  write_json_atomic(out_ / "metrics.json", metrics_json(info, metrics_->base(), result.summary));
}

}  // namespace

RunResult run(atoll::World& world, const RunOptions& options, const Inspect& inspect) {
  Trainer trainer(world, resolved(options));
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

// The training loop: trainer.cpp has its steps, trainer_figures.cpp what it measures.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/world.hpp"
#include "data/batches.hpp"
#include "data/step_queue.hpp"
#include "loop/averaging.hpp"
#include "loop/best_loss.hpp"
#include "loop/clock.hpp"
#include "loop/nonfinite.hpp"
#include "loop/norms.hpp"
#include "loop/optimizer.hpp"
#include "loop/options.hpp"
#include "loop/peak.hpp"
#include "loop/rank_figures.hpp"
#include "loop/reporting.hpp"
#include "loop/saving.hpp"
#include "loop/setup.hpp"
#include "loop/stopping.hpp"
#include "loop/tracing.hpp"
#include "model/decoder.hpp"
#include "report/metrics.hpp"

namespace train {

struct RunResult {
  std::vector<StepRecord> steps;
  Summary summary;
  std::vector<MissedGate> missed_gates;  // misses of --min-mfu and --max-memory; equal on all ranks
  Stop stop = Stop::none;                // why the run ended before --steps
};

// Called on every rank with the trained engine, so it may use collectives.
using Inspect = std::function<void(atoll::fsdp::Engine&)>;

// Prints samples of --show-data on rank 0. Collective. Throws like run().
void show_data(atoll::World& world, RunOptions options);

// Trains on all ranks of the World. Collective. Rank 0 writes files and shows progress. Throws
// atoll::Error with a one-line message; the caller then fails the World, so that no rank waits.
RunResult run(atoll::World& world, const RunOptions& options, const Inspect& inspect = {});

class Trainer {
 public:
  // Prepares the run of resolved options, and loads its weights unless it is a dry run, which
  // cannot start. Collective.
  Trainer(atoll::World& world, const RunOptions& options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer();
  RunResult run();
  void log_dry_run() { reporting_.log_dry_run(batches_); }
  // Prints loss and perplexity of the weights, for --evaluate. Collective.
  void print_evaluation();
  // Writes the model of --export. Collective; no pass may be open.
  void export_weights();
  atoll::fsdp::Engine& engine() noexcept { return engine_; }

 private:
  struct StepStart {
    Clock::time_point time;
    // Exposed communication of all steps before this one.
    std::chrono::nanoseconds exposed;
    double enqueue_seconds = 0;  // CPU time until the whole step was enqueued
    atoll::Stamp computed{};     // when the compute of the step is done
  };

  void make_state();
  void check_memory();
  void count_activations();
  nlohmann::json load();
  void start();
  RunResult run_steps();
  StepRecord step(std::int64_t index);
  unsigned blocks_beside_forward();
  Batch upload(const MicroBatch& batch, int index);
  void micro_batch(const StepPlan& plan, const MicroBatch& batch, int index);
  void open_pass(const StepPlan& plan, int index);
  bool evaluates_after(std::int64_t index) const;
  bool evaluate(StepRecord& record);
  bool stalls() const;
  void log_stall(std::int64_t done);
  double evaluation_loss();
  void save(std::int64_t done, bool at_end, bool is_best = false);
  bool end_step(StepRecord& record, Clock::time_point begin);
  void write_results(RunResult& result, double wall_seconds);

  void measure(StepRecord& record, const StepStart& start, std::int64_t valid_tokens);
  void count_bytes(StepRecord& record);
  void check_finite(const StepRecord& record);
  void note_memory();
  void check_transports();
  void log_ports(const atoll::Topology& before);
  void finish(RunResult& result, double wall_seconds);

  atoll::World& world_;
  RunOptions options_;
  Stopping stopping_;
  Setup setup_;
  atoll::fsdp::Engine engine_;
  Batches batches_;
  Decoder decoder_;
  std::unique_ptr<RunOptimizer> optimizer_;
  std::optional<Averaging> averaging_;  // set if --ema is given
  std::optional<NormLog> norm_log_;     // set if --log-norms is given
  std::optional<Activations> activations_;
  atoll::Buffer ids_;  // tokens, labels and, for packed rows, positions of a micro batch
  std::vector<atoll::Buffer> staging_;  // staging memory for the ids of each micro batch of a step
  FigureExchange exchange_;
  // The stream is destroyed before the members above, because its queued work may use them.
  atoll::Stream compute_;
  std::optional<StepQueue> queue_;  // must be destroyed before batches_, which its thread reads
  LoadedStep next_;
  // Pass of the next step, opened early so that its gathers overlap this step.
  std::optional<atoll::fsdp::Pass> next_pass_;
  std::int64_t first_step_ = 0;
  bool resumed_ = false;
  double compute_of_pass_ = 0;  // seconds of compute of a micro batch in the newest step
  // Number of GPU blocks of the newest updates that ran beside a forward; 0 if they ran before it.
  // Empty before the first update.
  std::optional<unsigned> blocks_beside_;

  atoll::fsdp::Engine::Traffic counted_;  // traffic of the steps counted so far
  std::int64_t own_memory_ = 0;
  MachineMeter meter_;
  Peak peak_;
  std::optional<Tracing> tracing_;
  std::optional<Clock::time_point> measured_;  // the end of the newest step
  NonFiniteRow nonfinite_row_;
  std::string diverged_;  // error that ends the run after too many non-finite steps; "" before
  bool weights_finite_ = true;  // no infinite or NaN weight after the newest non-finite step
  bool all_written_ = true;     // every rank has written its file of the save beside training

  BestLoss best_;
  Reporting reporting_;
  // Destroyed before the optimizer, whose moments a save beside training reads.
  std::optional<Saving> saving_;
};

}  // namespace train

// The state of a training run. trainer.cpp has its loop, trainer_figures.cpp what it measures and
// reports.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "atoll/fsdp.hpp"
#include "data/batches.hpp"
#include "data/step_queue.hpp"
#include "loop/averaging.hpp"
#include "loop/nonfinite.hpp"
#include "loop/norms.hpp"
#include "loop/optimizer.hpp"
#include "loop/peak.hpp"
#include "loop/rank_figures.hpp"
#include "loop/results.hpp"
#include "loop/resume.hpp"
#include "loop/setup.hpp"
#include "loop/stopping.hpp"
#include "loop/tracing.hpp"
#include "loop/trainer.hpp"
#include "model/decoder.hpp"
#include "report/endpoint.hpp"
#include "report/metrics_json.hpp"
#include "report/progress.hpp"

namespace train {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}
inline double seconds_since(Clock::time_point start) {
  return seconds_between(start, Clock::now());
}

struct StepStart {
  Clock::time_point time;
  // Exposed communication of all steps before this one.
  std::chrono::nanoseconds exposed;
  double enqueue_seconds = 0;  // host time until the whole step was enqueued
  atoll::Stamp computed{};     // when the compute of the step is done
};

class Trainer {
 public:
  Trainer(atoll::World& world, const RunOptions& options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer();
  RunResult run();
  // Prints the plan of a run whose options have dry_run. Such a run has no weights and cannot start.
  void tell_dry_run();
  atoll::fsdp::Engine& engine() noexcept { return engine_; }

 private:
  void start();
  void clean_up() const;
  void set_aside() const;
  void check_memory();
  void count_activations();
  void tell_plan();
  void write_arguments();
  void serve();
  std::vector<MissedGate> gates(const Summary& summary, std::int64_t device_bytes,
                                std::int64_t process_bytes);
  unsigned blocks_beside_forward();
  RunResult run_steps();
  StepRecord step(std::int64_t index);
  bool evaluates_after(std::int64_t index) const;
  void evaluate(StepRecord& record);
  double evaluation_loss();
  Batch upload(const MicroBatch& batch, int index);
  void micro_batch(const StepPlan& plan, const MicroBatch& batch, int index);
  void open_pass(const StepPlan& plan, int index);
  void exchange(const RankFigures& mine);
  void measure(StepRecord& record, const StepStart& start, std::int64_t valid_tokens);
  void count_bytes(StepRecord& record);
  void check_finite(const StepRecord& record);
  void write_line(const StepRecord& record);
  bool saves_after(std::int64_t index) const;
  // Saves after `done` steps: at once at the end of the run, otherwise beside training.
  void save(std::int64_t done, bool at_end);
  void finish_save();
  void keep_newest(std::int64_t done);
  Stop wanted_stop() const;
  std::string why_stopped(std::int64_t done) const;
  void tell_stop(std::int64_t done) const;
  void tell_signals(double step_seconds) const;
  void write_results(RunResult& result, double wall_seconds);
  void note_memory();
  void check_transports();
  void tell_ports(const atoll::Topology& before);
  void finish(RunResult& result, double wall_seconds);
  void write_metrics(const RunResult& result, RunInfo info);
  void report() const noexcept;

  Clock::time_point started_ = Clock::now();
  atoll::World& world_;
  RunOptions options_;
  Setup setup_;
  atoll::fsdp::Engine engine_;
  Batches batches_;
  Decoder decoder_;
  std::unique_ptr<RunOptimizer> optimizer_;
  std::optional<Averaging> averaging_;  // of --ema
  std::optional<NormLog> norm_log_;     // of --log-norms
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
  std::optional<StepQueue> queue_;  // uses batches_
  LoadedStep next_;
  // Pass of the next step, opened early so that its gathers overlap this step.
  std::optional<atoll::fsdp::Pass> next_pass_;
  atoll::fsdp::Engine::Traffic counted_;  // traffic of the steps counted so far
  std::int64_t own_memory_ = 0;
  std::int64_t first_step_ = 0;
  std::optional<Tracing> tracing_;
  Peak peak_;
  std::optional<Metrics> metrics_;
  NonFiniteRow nonfinite_row_;
  std::string diverged_;        // why the run ends early; empty as long as steps are finite
  bool weights_finite_ = true;  // in the newest step that was not finite
  Stop stop_ = Stop::none;      // why the run ends after this step; equal on all ranks
  TimeLimit limit_{0, 0};
  bool all_written_ = true;  // every rank has written its file of the save beside training
  std::optional<Clock::time_point> measured_;  // the end of the newest step
  double compute_of_pass_ = 0;  // seconds of compute of a micro batch in the newest step
  // Blocks of a GPU for the newest updates beside a forward, 0 if they ran before it; none before
  // the first.
  std::optional<unsigned> blocks_beside_;
  double save_stall_ = 0;        // seconds that training has waited for saves between steps
  double step_stall_ = 0;        // seconds that steps have waited for saves beside them
  double stalled_by_save_ = 0;   // seconds of both for the newest save
  bool has_checkpoint_ = false;  // the run has resumed one or saved one
  std::int64_t saves_ = 0;
  std::int64_t saving_ = 0;  // steps of the save beside training
  Clock::time_point saving_since_;
  Results results_;
  Extra same_run_;  // what every checkpoint of this run records
  std::filesystem::path out_;
  std::optional<StepLog> log_;        // exists only on rank 0
  std::optional<Progress> progress_;  // exists only on rank 0
  std::optional<Endpoint> endpoint_;  // exists only on rank 0, for --metrics-port
  MachineMeter meter_;
  // Destroyed before the optimizer, whose moments it reads.
  std::optional<atoll::fsdp::PendingSave> pending_;
};

}  // namespace train

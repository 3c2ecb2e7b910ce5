// The output of a run: the log of its plan, the progress line, and in the results folder the
// records of steps, metrics.json and report.html.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "data/batches.hpp"
#include "loop/results.hpp"
#include "loop/setup.hpp"
#include "report/endpoint.hpp"
#include "report/metrics_json.hpp"
#include "report/progress.hpp"

namespace train {

// A limit of --min-mfu or --max-memory that the figures of the whole run did not keep.
struct MissedGate {
  int exit_code = 0;
  std::string message;  // names the flag, the figure and the limit
};

// All ranks have one, but only rank 0 writes files and shows progress.
class Reporting {
 public:
  // All arguments must outlive this object.
  Reporting(atoll::World& world, const RunOptions& options, const Setup& setup,
            atoll::fsdp::Engine& engine);

  const std::filesystem::path& folder() const noexcept { return out_; }
  Results& results() noexcept { return results_; }

  // Logs the plan of a run with --dry-run, which does not start.
  void log_dry_run(Batches& batches) const;
  // Opens the files, and logs and writes the plan of a run that has done `first_step` steps.
  void start(std::int64_t first_step, const SpeedBase& base);
  // Adds the record of a step, and shows it.
  void step(const StepRecord& record);
  // Ends the progress line. Call it before a message.
  void end_line();

  // The metrics of the run, after start().
  Metrics& metrics() noexcept { return *metrics_; }
  // Compares the run with --min-mfu and --max-memory. Collective.
  std::vector<MissedGate> gates(const Summary& summary, std::int64_t device_bytes,
                                std::int64_t process_bytes);
  // Writes metrics.json. `info` has the times, the memory, the peak and the checkpoints of the run.
  void finish(const Summary& summary, RunInfo info);
  // Logs the known warnings that the figures show, and writes report.html.
  void write_page() const noexcept;

 private:
  void clean_up() const;
  void set_aside() const;
  void warn_of_batches() const;
  std::string trained_part() const;
  void log_plan() const;
  void write_arguments() const;
  void serve();

  atoll::World& world_;
  const RunOptions& options_;
  const Setup& setup_;
  atoll::fsdp::Engine& engine_;
  std::filesystem::path out_;
  Results results_;
  std::int64_t first_step_ = 0;
  std::optional<Metrics> metrics_;
  LossWatch loss_watch_;
  // These exist only on rank 0.
  std::optional<StepLog> log_;
  std::optional<Progress> progress_;
  std::optional<Endpoint> endpoint_;  // set if --metrics-port is given
};

}  // namespace train

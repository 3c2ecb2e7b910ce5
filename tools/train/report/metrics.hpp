// Accumulates the figures of a run, step by step. Uses neither clock nor files.
//
// Token counts: `valid` positions carry loss, `real` positions hold a token of a sample, `padded`
// positions hold none. real + padded = positions computed. All counts include all ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "report/utilization.hpp"

namespace train {

// Euclidean norms over all shards of a unit's trained parameters.
struct UnitNorms {
  double gradient = 0;  // norm of the gradients before clipping
  double weight = 0;    // norm of the weights after the step
};

struct StepRecord {
  std::int64_t step = 0;       // number of the step, from 1; a resumed run continues the count
  std::int64_t epoch = 0;      // number of the epoch, from 0
  double seconds = 0;          // duration of the step on the slowest rank
  double between_seconds = 0;  // time from the end of the step before to the start of this one
  double loss = 0;             // mean loss of the valid tokens
  std::optional<double> eval_loss{};          // mean loss of the evaluation after the step, if any
  std::optional<double> eval_loss_average{};  // eval_loss of the averaged weights (--ema)
  double learning_rate = 0;
  double grad_norm = 0;
  std::map<std::string, UnitNorms> norms{};  // norms by unit; empty without --log-norms
  bool nonfinite = false;                    // loss or gradient norm is infinite or NaN
  bool skipped = false;  // the step changed no weights, because its norm was not finite
  std::int64_t samples = 0;
  std::int64_t valid = 0;
  std::int64_t real = 0;
  std::int64_t padded = 0;
  // Means over ranks; exposed_worst_seconds is the maximum.
  double compute_seconds = 0;  // time until the step's compute is done, less exposed communication
  double enqueue_seconds = 0;  // time until the host had enqueued the step
  double data_wait_seconds = 0;      // time that the step waited for its data
  double communication_seconds = 0;  // time within the step with a collective in flight
  double exposed_comm_seconds = 0;   // time that compute waited for communication
  double exposed_worst_seconds = 0;
  // Bytes that a rank passed to collectives, by mesh axis.
  std::map<std::string, std::int64_t> axis_bytes{};
  double flops = 0;  // model FLOPs on all computed positions of all ranks, without recomputation
  std::optional<Utilization> use{};  // use of the machines of all ranks
};

// Constants that turn counts into rates.
struct SpeedBase {
  std::int64_t untimed_steps = 0;  // first steps of this run, excluded from rates and fractions
  // Parameters of the model: N in the estimate of 6 N FLOPs per token.
  std::int64_t parameters = 0;
  double peak_flops = 0;      // FLOP/s of one rank, measured or published; 0: unknown
  double measured_flops = 0;  // FLOP/s of one rank, measured; 0: unknown
  int world_size = 1;
};

// Rates of a set of steps. A rate is empty if its divisor is zero or unknown.
struct Speed {
  double seconds = 0;
  std::optional<double> steps_per_s;
  std::optional<double> samples_per_s;
  // Tokens of samples per second: within steps, and with the time between steps.
  std::optional<double> tokens_per_s;
  std::optional<double> overall_tokens_per_s;
  std::optional<double> padded_tokens_per_s;  // padded positions per second
  std::optional<double> valid_tokens_per_s;
  std::optional<double> tflops;        // TFLOP/s per rank, padded tokens included
  std::optional<double> mfu;           // tflops / peak rate of a rank
  std::optional<double> mfu_measured;  // tflops / measured peak rate of a rank
  std::optional<double> tflops_6n;     // TFLOP/s per rank, if FLOPs are 6 x parameters x positions
  std::optional<double> mfu_6n;
  std::optional<double> mfu_real;  // mfu x real / (real + padded)
  // Means per step, in seconds and bytes.
  std::optional<double> between_steps_s;
  std::optional<double> compute_s;
  std::optional<double> enqueue_s;
  std::optional<double> data_wait_s;
  std::optional<double> communication_s;
  std::optional<double> exposed_s;
  std::optional<double> exposed_worst_s;
  std::map<std::string, double> axis_bytes;
  std::optional<double> exposed_comm_fraction;
  std::optional<double> compute_fraction;
  std::optional<double> padding_fraction;
  std::optional<Utilization> use;
};

// Returns the rates of `steps` steps; `sums` is the sum of their records.
Speed speed_of(const StepRecord& sums, const SpeedBase& base, std::int64_t steps = 1);

struct Summary {
  std::int64_t steps = 0;
  std::int64_t timed_steps = 0;
  StepRecord totals;                 // sums of all records, including the untimed ones
  std::int64_t nonfinite_steps = 0;  // steps whose loss or gradient norm was not finite
  std::int64_t skipped_steps = 0;    // nonfinite steps that changed no weights
  // Infinite and NaN losses count in loss_first, but in none of the others.
  std::optional<double> loss_first;  // loss of this run's first step
  std::optional<double> loss_last;   // mean of the last loss_window steps, or of all if fewer
  std::optional<double> loss_min;
  std::optional<double> eval_loss;  // loss of the last evaluation
  std::optional<double> eval_loss_min;
  std::optional<double> eval_loss_average;  // loss of the averaged weights in the last evaluation
  Speed speed;                              // rates of the timed steps
};

// Numbers of steps whose loss or gradient norm was infinite or NaN.
struct BadSteps {
  std::int64_t skipped = 0;    // steps that changed no weights
  std::int64_t nonfinite = 0;  // all steps that were not finite, with the skipped ones
};

inline constexpr std::size_t loss_window = 20;

// Warns once if the loss of a run rises instead of falling.
class LossWatch {
 public:
  // Notes the loss of a step; ignores infinity and NaN. Returns a warning the first time that the
  // mean of five steps is twice the lowest such mean, and 0.5 above it; otherwise "".
  std::string step(double loss);

 private:
  std::deque<double> recent_;
  std::optional<double> lowest_;
  bool warned_ = false;
};

class Metrics {
 public:
  explicit Metrics(const SpeedBase& base) : base_(base) {}

  // Adds a step. If two steps were faster than the peak, the peak was measured too low, and the
  // lower of their rates replaces it. One step is not enough: a wrong clock can make it seem fast.
  void add(const StepRecord& step);

  const SpeedBase& base() const noexcept { return base_; }
  // Replaces the peak by a later measurement if that is higher.
  void set_peak(double peak_flops, double measured_flops) noexcept {
    base_.peak_flops = std::max(base_.peak_flops, peak_flops);
    base_.measured_flops = std::max(base_.measured_flops, measured_flops);
  }
  Summary summary() const;

  // Speed of all timed steps, for the progress line.
  Speed running() const;
  BadSteps bad_steps() const noexcept { return {summary_.skipped_steps, summary_.nonfinite_steps}; }

 private:
  void raise_peak(const StepRecord& step);

  SpeedBase base_;
  double fastest_ = 0;              // FLOP/s of a rank in the fastest step
  Summary summary_;                 // figures of all steps, still without loss_last and speed
  StepRecord timed_;                // sum of the records of the timed steps
  std::deque<double> last_losses_;  // finite losses of the last steps, at most loss_window
};

}  // namespace train

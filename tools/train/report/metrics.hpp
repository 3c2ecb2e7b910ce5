// The figures of a run: added step by step, summed up once. Pure: no clock, no file.
//
// Vocabulary of tokens: `valid` carry loss; `real` are positions that hold a token of a sample;
// `padded` are positions computed for nothing. real + padded = positions computed. All counts are
// over all ranks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace train {

struct StepRecord {
  std::int64_t step = 0;   // of the run, counted from 1; a resumed run goes on counting
  std::int64_t epoch = 0;  // counted from 0
  double seconds = 0;      // of the rank that took longest
  double loss = 0;         // mean over valid tokens
  double learning_rate = 0;
  double grad_norm = 0;
  std::int64_t samples = 0;
  std::int64_t valid = 0;
  std::int64_t real = 0;
  std::int64_t padded = 0;
  // Means over ranks, and the worst of them.
  double compute_seconds = 0;        // the rest of the step: compute, and what holds it up
  double enqueue_seconds = 0;        // until the host had handed its work to the device
  double communication_seconds = 0;  // at least one collective ran; not before the step began
  double exposed_comm_seconds = 0;   // compute waited for communication
  double exposed_worst_seconds = 0;
  // Bytes that a rank has handed to collectives, by the axis that they ran over.
  std::map<std::string, std::int64_t> axis_bytes{};
  double flops =
      0;  // of the model on all positions computed, over all ranks; recomputation excluded
};

// What turns counts into rates.
struct SpeedBase {
  std::int64_t warmup_steps = 0;  // the first ones of this run, left out of rates and fractions
  std::int64_t parameters = 0;    // of the whole model, for the 6 N rule
  double peak_flops = 0;          // of one rank, per second: measured or published; 0: not known
  int world_size = 1;
};

// Rates of a set of steps. Nothing where a divisor is zero or not known.
struct Speed {
  double seconds = 0;
  std::optional<double> steps_per_s;
  std::optional<double> samples_per_s;
  std::optional<double> tokens_per_s;         // real
  std::optional<double> padded_tokens_per_s;  // beside them, not among them
  std::optional<double> valid_tokens_per_s;
  std::optional<double> tflops;     // of one rank, on all positions computed
  std::optional<double> mfu;        // tflops over the peak
  std::optional<double> tflops_6n;  // 6 x parameters x positions instead of the counted FLOPs
  std::optional<double> mfu_6n;
  std::optional<double> mfu_real;  // mfu x real / (real + padded): padding counts as lost
  // Of a step, in s and bytes.
  std::optional<double> compute_s;
  std::optional<double> enqueue_s;
  std::optional<double> communication_s;
  std::optional<double> exposed_s;
  std::optional<double> exposed_worst_s;
  std::map<std::string, double> axis_bytes;
  std::optional<double> exposed_comm_fraction;
  std::optional<double> compute_fraction;
  std::optional<double> padding_fraction;
};

Speed speed_of(const StepRecord& step, const SpeedBase& base);

struct Summary {
  std::int64_t steps = 0;
  std::int64_t timed_steps = 0;
  std::int64_t samples = 0;  // this and the next three over all steps, warm-up too
  std::int64_t valid = 0;
  std::int64_t real = 0;
  std::int64_t padded = 0;
  double step_seconds = 0;           // sum over all steps
  std::optional<double> loss_first;  // of the first step of this run
  std::optional<double> loss_last;   // mean of the last 20 steps, of all when there are fewer
  std::optional<double> loss_min;
  Speed speed;  // of the timed steps
};

inline constexpr std::int64_t loss_window = 20;

class Metrics {
 public:
  explicit Metrics(const SpeedBase& base) : base_(base) {}

  void add(const StepRecord& step);

  const SpeedBase& base() const noexcept { return base_; }
  Summary summary() const;

  // Of all steps from the end of the warm-up to now: what a progress line shows.
  Speed running() const;

 private:
  SpeedBase base_;
  Summary totals_;
  StepRecord timed_;                 // sums over the timed steps
  std::vector<double> last_losses_;  // ring of loss_window
};

}  // namespace train

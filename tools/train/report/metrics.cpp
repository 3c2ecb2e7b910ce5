#include "report/metrics.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <numeric>

namespace train {
namespace {

constexpr double tera = 1e12;

std::optional<double> ratio(double numerator, double denominator) {
  if (!(denominator > 0)) return std::nullopt;
  return numerator / denominator;
}

// sum + factor * use, member by member, all of which are f64.
Utilization scaled_sum(const Utilization& sum, const Utilization& use, double factor = 1) {
  using Numbers = std::array<double, sizeof(Utilization) / sizeof(double)>;
  auto total = std::bit_cast<Numbers>(sum);
  const auto added = std::bit_cast<Numbers>(use);
  for (std::size_t i = 0; i < total.size(); ++i) total[i] += factor * added[i];
  return std::bit_cast<Utilization>(total);
}

void accumulate(const StepRecord& step, StepRecord& sums) {
  sums.seconds += step.seconds;
  sums.between_seconds += step.between_seconds;
  sums.samples += step.samples;
  sums.valid += step.valid;
  sums.real += step.real;
  sums.padded += step.padded;
  sums.compute_seconds += step.compute_seconds;
  sums.enqueue_seconds += step.enqueue_seconds;
  sums.data_wait_seconds += step.data_wait_seconds;
  sums.communication_seconds += step.communication_seconds;
  sums.exposed_comm_seconds += step.exposed_comm_seconds;
  sums.exposed_worst_seconds += step.exposed_worst_seconds;
  for (const auto& [axis, bytes] : step.axis_bytes) sums.axis_bytes[axis] += bytes;
  sums.flops += step.flops;
  if (step.use) sums.use = scaled_sum(sums.use.value_or(Utilization{}), *step.use);
}

}  // namespace

Speed speed_of(const StepRecord& sums, const SpeedBase& base, std::int64_t steps) {
  const double seconds = sums.seconds;
  const auto positions = static_cast<double>(sums.real + sums.padded);
  const double rank_seconds = seconds * base.world_size;
  const double flops_6n = 6.0 * static_cast<double>(base.parameters) * positions;

  Speed speed;
  speed.seconds = seconds;
  speed.steps_per_s = ratio(static_cast<double>(steps), seconds);
  speed.samples_per_s = ratio(static_cast<double>(sums.samples), seconds);
  speed.tokens_per_s = ratio(static_cast<double>(sums.real), seconds);
  speed.overall_tokens_per_s =
      ratio(static_cast<double>(sums.real), seconds + sums.between_seconds);
  speed.padded_tokens_per_s = ratio(static_cast<double>(sums.padded), seconds);
  speed.valid_tokens_per_s = ratio(static_cast<double>(sums.valid), seconds);
  const auto count = static_cast<double>(steps);
  speed.between_steps_s = ratio(sums.between_seconds, count);
  speed.compute_s = ratio(sums.compute_seconds, count);
  speed.enqueue_s = ratio(sums.enqueue_seconds, count);
  speed.data_wait_s = ratio(sums.data_wait_seconds, count);
  speed.communication_s = ratio(sums.communication_seconds, count);
  speed.exposed_s = ratio(sums.exposed_comm_seconds, count);
  speed.exposed_worst_s = ratio(sums.exposed_worst_seconds, count);
  for (const auto& [axis, bytes] : sums.axis_bytes) {
    if (steps > 0) speed.axis_bytes[axis] = static_cast<double>(bytes) / count;
  }
  speed.exposed_comm_fraction = ratio(sums.exposed_comm_seconds, seconds);
  speed.compute_fraction = ratio(sums.compute_seconds, seconds);
  speed.padding_fraction = ratio(static_cast<double>(sums.padded), positions);
  if (sums.use && steps > 0) speed.use = scaled_sum({}, *sums.use, 1 / count);
  if (sums.flops > 0) speed.tflops = ratio(sums.flops / tera, rank_seconds);
  if (base.parameters > 0) speed.tflops_6n = ratio(flops_6n / tera, rank_seconds);
  if (speed.tflops) speed.mfu = ratio(*speed.tflops * tera, base.peak_flops);
  if (speed.tflops) speed.mfu_measured = ratio(*speed.tflops * tera, base.measured_flops);
  if (speed.tflops_6n) speed.mfu_6n = ratio(*speed.tflops_6n * tera, base.peak_flops);
  if (speed.mfu && speed.padding_fraction) {
    speed.mfu_real = *speed.mfu * (1 - *speed.padding_fraction);
  }
  return speed;
}

std::string LossWatch::step(double loss) {
  constexpr std::size_t window = 5;
  if (warned_ || !std::isfinite(loss)) return "";
  recent_.push_back(loss);
  if (recent_.size() > window) recent_.pop_front();
  if (recent_.size() < window) return "";
  const double mean = std::reduce(recent_.begin(), recent_.end()) / window;
  lowest_ = std::min(lowest_.value_or(mean), mean);
  if (mean < std::max(2 * *lowest_, *lowest_ + 0.5)) return "";
  warned_ = true;
  return fmt::format(
      "the loss has risen from {:.3f} to {:.3f} (means of {} steps): the run diverges; lower --lr "
      "or lengthen --warmup-steps",
      *lowest_, mean, window);
}

void Metrics::raise_peak(const StepRecord& step) {
  const double rate = speed_of(step, base_).tflops.value_or(0) * tera;
  const double reached = std::min(rate, fastest_);
  fastest_ = std::max(rate, fastest_);
  if (base_.measured_flops <= 0 || reached <= base_.measured_flops) return;
  if (base_.peak_flops == base_.measured_flops) base_.peak_flops = reached;
  base_.measured_flops = reached;
}

void Metrics::add(const StepRecord& step) {
  raise_peak(step);
  if (summary_.steps == 0) summary_.loss_first = step.loss;
  summary_.nonfinite_steps += step.nonfinite ? 1 : 0;
  summary_.skipped_steps += step.skipped ? 1 : 0;
  if (step.eval_loss) {
    summary_.eval_loss = step.eval_loss;
    summary_.eval_loss_min =
        std::min(summary_.eval_loss_min.value_or(*step.eval_loss), *step.eval_loss);
  }
  if (step.eval_loss_average) summary_.eval_loss_average = step.eval_loss_average;
  if (std::isfinite(step.loss)) {
    summary_.loss_min = std::min(summary_.loss_min.value_or(step.loss), step.loss);
    last_losses_.push_back(step.loss);
    if (last_losses_.size() > loss_window) last_losses_.pop_front();
  }
  accumulate(step, summary_.totals);
  if (++summary_.steps <= base_.untimed_steps) return;
  ++summary_.timed_steps;
  accumulate(step, timed_);
}

Summary Metrics::summary() const {
  Summary summary = summary_;
  summary.speed = running();
  if (!last_losses_.empty()) {
    summary.loss_last = std::accumulate(last_losses_.begin(), last_losses_.end(), 0.0) /
                        static_cast<double>(last_losses_.size());
  }
  return summary;
}

Speed Metrics::running() const { return speed_of(timed_, base_, summary_.timed_steps); }

}  // namespace train

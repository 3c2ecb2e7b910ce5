// Why a run is slower than it should be: what was expected and what was measured, and the causes
// that explain the difference, the largest first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/simulate.hpp"

namespace plan {

// Figures that a training run measured. Tokens/s count the tokens of all ranks, padding included;
// times are in seconds.
struct Measurement {
  double tokens_per_s = 0;
  std::optional<double> exposed_s{};    // exposed communication per step
  std::optional<double> padding{};      // share of padding in the tokens
  std::optional<double> data_wait_s{};  // time that compute waits for data, per step
  std::optional<double> enqueue_s{};    // time in which the CPU enqueues a step
  bool is_atoll = false;  // true for a run of atoll-train, false for another framework
  // Tokens/s of the same settings on one host, where communication is hidden.
  std::optional<double> one_host_tokens_per_s{};
};

struct Cause {
  std::string what;    // the cause in one sentence
  std::string check;   // how to tell this cause from the others, and what to do
  double seconds = 0;  // seconds of a step that the cause explains; 0: unknown
};

struct Explanation {
  double expected_step_s = 0, measured_step_s = 0;
  double expected_compute_s = 0, measured_compute_s = 0;
  double expected_exposed_s = 0, measured_exposed_s = 0;
  double expected_gather_s = 0, expected_reduce_s = 0;  // parts of the expected exposed time
  double measured_data_s = 0;    // time that compute waits for data; 0 in a prediction
  double measured_launch_s = 0;  // time in which the CPU enqueues a step; 0 if unknown
  double slowdown = 1;           // measured time of compute over expected time
  // GB/s between hosts with which the prediction meets the measured step. Empty if the fabric is
  // not the cause. `health` is this rate divided by that of a healthy fabric.
  std::optional<double> busbw{};
  double health = 1;
  std::vector<Cause> causes{};  // in descending order of their seconds
  bool has_parts = false;       // the run has measured its exposed communication
  std::string caveat{};         // what the measurement cannot tell apart; "" if nothing
};

// Returns the GB/s of a host below which `holds` returns true, by bisection on a logarithmic scale
// up to the rate of a healthy fabric. Nothing if it is false even at a thousandth of that rate.
std::optional<double> rate_below_which(const atoll::FabricModel& fabric, int rounds,
                                       const std::function<bool(double)>& holds);

Explanation explain(const Job& job, const Measurement& measured);
std::string to_text(const Explanation& explanation, const Job& job);

}  // namespace plan

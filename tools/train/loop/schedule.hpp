// The learning rate of each step, and where the rate of a run comes from.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "loop/options.hpp"

namespace train {

// The learning rate at step `step`, counted from 0, as Hugging Face's schedulers define it. It
// rises linearly from 0, which is the rate of the first step, and reaches --lr at step
// --warmup-steps. Then it stays (constant), or falls to --lr-min-ratio x --lr at --steps: along a
// line (linear), along half a cosine (cosine), or along a line in the last --lr-decay-steps steps
// only (wsd: warm-up, stable, decay).
double learning_rate(const RunOptions& options, std::int64_t step);

// Sets --lr of a run that starts without it, by what is usual: 2e-5 for loaded weights, 2e-4 if
// adapters are trained, 1e-3 for random weights. Returns a line that says so; "" if --lr was given.
std::string choose_rate(RunOptions& options, bool loads_weights);

// Returns the flags that decide the learning rates of all steps. Checkpoints record them.
nlohmann::json schedule_of(const RunOptions& options);
// Unless --lr was given, sets it to the rate of the schedule that a checkpoint records, or to 1e-3
// if it records none. Returns a line if the rate after `done` steps is not the one with which the
// run that saved would have gone on; otherwise "".
std::string resume_rate(RunOptions& options, const nlohmann::json& saved, std::int64_t done);

}  // namespace train

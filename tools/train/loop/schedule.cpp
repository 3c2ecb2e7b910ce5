#include "loop/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <vector>

#include "loop/flags.hpp"

namespace train {
namespace {

// The number of steps of the decay of the wsd schedule.
std::int64_t decay_steps(const RunOptions& options) {
  if (options.lr_decay_steps > 0) return options.lr_decay_steps;
  return std::max<std::int64_t>(options.steps / 10, 1);
}

// The fraction of the decay that is done at this step, from 0 to 1.
double decayed(const RunOptions& options, std::int64_t first, std::int64_t step) {
  const auto span = static_cast<double>(std::max<std::int64_t>(options.steps - first, 1));
  return std::clamp(static_cast<double>(step - first) / span, 0.0, 1.0);
}

constexpr double rate_of_random_weights = 1e-3;

// The flags that decide the rates of all steps.
std::vector<const Flag*> schedule_flags() {
  std::vector<const Flag*> found;
  for (const Flag& flag : flags()) {
    for (const char* name : {"--lr", "--lr-schedule", "--warmup-steps", "--lr-min-ratio",
                             "--lr-decay-steps", "--steps"}) {
      if (flag.name() == name) found.push_back(&flag);
    }
  }
  return found;
}

// Sets the flag's member from a value that a checkpoint records, if that has its type.
void set(const Flag& flag, RunOptions& options, const nlohmann::json& value) {
  std::visit(
      [&]<class T>(T RunOptions::*member) {
        const nlohmann::json held = options.*member;
        if (value.is_number() == held.is_number() && value.is_string() == held.is_string()) {
          options.*member = value.get<T>();
        }
      },
      flag.member);
}

}  // namespace

double learning_rate(const RunOptions& options, std::int64_t step) {
  if (step < options.warmup_steps) {
    // As in Hugging Face's schedulers, warmup starts at 0, but with wsd at --lr-min-ratio x --lr.
    const double least = options.lr_schedule == "wsd" ? options.lr_min_ratio : 0;
    const double risen = static_cast<double>(step) / static_cast<double>(options.warmup_steps);
    return options.lr * (least + (1 - least) * risen);
  }
  double kept = 1;  // share of the rate above its minimum: 1 before the decay, 0 at its end
  if (options.lr_schedule == "linear") {
    kept = 1 - decayed(options, options.warmup_steps, step);
  } else if (options.lr_schedule == "cosine") {
    kept = 0.5 * (1 + std::cos(std::numbers::pi * decayed(options, options.warmup_steps, step)));
  } else if (options.lr_schedule == "wsd") {
    const std::int64_t first = std::max(options.steps - decay_steps(options), options.warmup_steps);
    kept = 1 - decayed(options, first, step);
  }
  return options.lr * (options.lr_min_ratio + (1 - options.lr_min_ratio) * kept);
}

std::string choose_rate(RunOptions& options, bool loads_weights) {
  if (options.lr != usual_rate) return "";
  const bool adapters = options.lora_rank > 0;
  options.lr = adapters ? 2e-4 : loads_weights ? 2e-5 : rate_of_random_weights;
  return fmt::format("--lr {}: usual for {}", options.lr,
                     adapters        ? "adapters"
                     : loads_weights ? "weights that were trained before"
                                     : "random weights");
}

nlohmann::json schedule_of(const RunOptions& options) {
  auto schedule = nlohmann::json::object();
  for (const Flag* const flag : schedule_flags()) schedule[flag->key()] = flag->value(options);
  return schedule;
}

std::string resume_rate(RunOptions& options, const nlohmann::json& saved, std::int64_t done) {
  RunOptions before = options;
  std::vector<std::string> changes;
  for (const Flag* const flag : schedule_flags()) {
    if (saved.is_object() && saved.contains(flag->key())) {
      set(*flag, before, saved[flag->key()]);
    }
    if (flag->name() == "--lr") {
      if (before.lr == usual_rate) before.lr = rate_of_random_weights;
      if (options.lr == usual_rate) options.lr = before.lr;
    }
    if (flag->name() == "--warmup-steps" && options.usual_warmup) {
      options.warmup_steps = before.warmup_steps;
    }
    const auto was = flag->value(before), is = flag->value(options);
    if (was != is)
      changes.push_back(fmt::format("{} was {} and is {}", flag->name(), was.dump(), is.dump()));
  }
  const double was = learning_rate(before, done), is = learning_rate(options, done);
  if (done >= options.steps || std::abs(is - was) <= 1e-9 * options.lr) return "";
  return fmt::format("--resume: {}: the learning rate of step {} is {:.3g}, and was to be {:.3g}",
                     fmt::join(changes, ", "), done + 1, is, was);
}

}  // namespace train

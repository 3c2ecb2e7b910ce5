#include "report/metrics_json.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace train {
namespace {

using nlohmann::json;

json number(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  return *value;
}

void put_speed(json& out, const Speed& speed) {
  out["tokens_per_s"] = number(speed.tokens_per_s);
  out["padded_tokens_per_s"] = number(speed.padded_tokens_per_s);
  out["tflops"] = number(speed.tflops);
  out["mfu"] = number(speed.mfu);
  out["exposed_comm_fraction"] = number(speed.exposed_comm_fraction);
  out["compute_s"] = number(speed.compute_s);
  out["enqueue_s"] = number(speed.enqueue_s);
  out["communication_s"] = number(speed.communication_s);
  out["exposed_s"] = number(speed.exposed_s);
  out["exposed_worst_s"] = number(speed.exposed_worst_s);
  out["axis_bytes"] = json::object();
  for (const auto& [axis, bytes] : speed.axis_bytes) out["axis_bytes"][axis] = std::llround(bytes);
}

}  // namespace

json metrics_json(const RunInfo& run, const SpeedBase& base, const Summary& summary) {
  const Speed& speed = summary.speed;
  const double per_rank =
      static_cast<double>(summary.real + summary.padded) / static_cast<double>(base.world_size);
  json out;
  out["run_name"] = run.run_name;
  out["engine"] = {{"name", "atoll"}, {"version", ATOLL_VERSION}};
  out["model"] = run.model;
  out["parameters"] = base.parameters;
  out["dataset"] = run.dataset;
  out["tokenizer"] = run.tokenizer;
  out["fsdp"] = run.strategy;
  out["strategy"] = run.strategy;
  out["mesh"] = fmt::format("{}x{}", run.replicate, run.shard);
  out["world_size"] = base.world_size;
  out["gpu0"] = run.gpu0 ? json(*run.gpu0) : json(nullptr);
  out["bf16"] = run.dtype == "bf16";

  out["wall_time_s"] = number(run.wall_time_s);
  out["approx_tokens_per_rank"] = std::llround(per_rank);
  out["approx_tokens_per_s_per_rank"] =
      run.wall_time_s > 0 ? number(per_rank / run.wall_time_s) : json(nullptr);

  out["steps"] = summary.steps;
  out["warmup_steps"] = summary.steps - summary.timed_steps;
  out["samples"] = summary.samples;
  out["tokens"] = summary.real;
  out["padded_tokens"] = summary.padded;
  out["valid_tokens"] = summary.valid;
  out["loss_first"] = number(summary.loss_first);
  out["loss_last"] = number(summary.loss_last);
  out["loss_min"] = number(summary.loss_min);

  put_speed(out, speed);
  out["steps_per_s"] = number(speed.steps_per_s);
  out["samples_per_s"] = number(speed.samples_per_s);
  out["valid_tokens_per_s"] = number(speed.valid_tokens_per_s);
  out["padding_fraction"] = number(speed.padding_fraction);
  out["compute_fraction"] = number(speed.compute_fraction);
  out["mfu_real"] = number(speed.mfu_real);
  out["tflops_6n"] = number(speed.tflops_6n);
  out["mfu_6n"] = number(speed.mfu_6n);
  out["peak_flops_per_rank"] = base.peak_flops > 0 ? number(base.peak_flops) : json(nullptr);
  out["peak_source"] = run.peak_source;
  out["transports"] = run.transports;
  out["peak_memory_bytes"] = run.peak_memory_bytes;
  out["planned_memory_bytes"] = run.planned_memory_bytes;
  out["device_memory_bytes"] = run.device_memory_bytes;
  out["proportional_memory_bytes"] = run.proportional_memory_bytes;
  return out;
}

json step_json(const StepRecord& step, const SpeedBase& base) {
  json out;
  out["step"] = step.step;
  out["epoch"] = step.epoch;
  out["loss"] = number(step.loss);
  out["learning_rate"] = number(step.learning_rate);
  out["grad_norm"] = number(step.grad_norm);
  out["seconds"] = number(step.seconds);
  out["samples"] = step.samples;
  out["tokens"] = step.real;
  out["padded_tokens"] = step.padded;
  out["valid_tokens"] = step.valid;
  put_speed(out, speed_of(step, base));
  return out;
}

}  // namespace train

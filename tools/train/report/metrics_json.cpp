#include "report/metrics_json.hpp"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "atoll/version.hpp"
#include "fail.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {
namespace {

using nlohmann::json;

using Numbers = std::initializer_list<std::pair<const char*, std::optional<double>>>;
void put(json& out, const Numbers& numbers) {
  for (const auto& [name, value] : numbers) {
    out[name] = value && std::isfinite(*value) ? json(*value) : json(nullptr);
  }
}

void put_speed(json& out, const Speed& speed) {
  put(out, {{"tokens_per_s", speed.tokens_per_s},
            {"overall_tokens_per_s", speed.overall_tokens_per_s},
            {"padded_tokens_per_s", speed.padded_tokens_per_s},
            {"tflops", speed.tflops},
            {"mfu", speed.mfu},
            {"exposed_comm_fraction", speed.exposed_comm_fraction},
            {"between_steps_s", speed.between_steps_s},
            {"compute_s", speed.compute_s},
            {"enqueue_s", speed.enqueue_s},
            {"data_wait_s", speed.data_wait_s},
            {"communication_s", speed.communication_s},
            {"exposed_s", speed.exposed_s},
            {"exposed_worst_s", speed.exposed_worst_s}});
  if (speed.use) {
    put(out, {{"cpu_machine", speed.use->cpu_machine},
              {"cpu_ranks", speed.use->cpu_ranks},
              {"memory_used_fraction", speed.use->memory_used_fraction},
              {"network_sent_per_s", speed.use->network_sent_per_s},
              {"network_received_per_s", speed.use->network_received_per_s}});
  }
  if (speed.use && speed.use->gpus > 0) {
    put(out, {{"gpu_busy", speed.use->gpu_busy},
              {"nvlink_sent_per_s", speed.use->nvlink_sent_per_s},
              {"nvlink_received_per_s", speed.use->nvlink_received_per_s},
              {"pcie_sent_per_s", speed.use->pcie_sent_per_s},
              {"pcie_received_per_s", speed.use->pcie_received_per_s}});
  }
  out["axis_bytes"] = json::object();
  for (const auto& [axis, bytes] : speed.axis_bytes) out["axis_bytes"][axis] = std::llround(bytes);
}

// Returns the lines of steps before `first_step`. If other lines are not records, warns and keeps a
// copy of the file beside it, except for the last line, which a crash may have cut off.
std::string lines_before(const std::filesystem::path& file, std::int64_t first_step) {
  std::string kept, all;
  std::int64_t number = 0, damaged = 0, first_damaged = 0;
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    ++number;
    all += line + "\n";
    const auto record = json::parse(line, nullptr, false);
    const bool is_record =
        record.is_object() && record.contains("step") && record["step"].is_number_integer();
    if (!is_record && !in.eof() && damaged++ == 0) first_damaged = number;
    if (is_record && record["step"].get<std::int64_t>() < first_step) kept += line + "\n";
  }
  if (damaged > 0) {
    const std::filesystem::path aside = file.string() + ".damaged";
    write_file_atomic(aside, all);
    log::warn(
        "{}: {} lines are no records of steps, the first of them line {}; they are left out, "
        "and {} has the file as it was",
        file.string(), damaged, first_damaged, aside.string());
  }
  return kept;
}

}  // namespace

json metrics_json(const RunInfo& run, const SpeedBase& base, const Summary& summary) {
  const Speed& speed = summary.speed;
  const double per_rank = static_cast<double>(summary.totals.real + summary.totals.padded) /
                          static_cast<double>(base.world_size);
  json out{{"run_name", run.run_name},
           {"engine", {{"name", "atoll"}, {"version", ATOLL_VERSION}}},
           {"model", run.model},
           {"parameters", base.parameters},
           {"dataset", run.dataset},
           {"tokenizer", run.tokenizer},
           {"fsdp", run.strategy != "no_shard"},
           {"strategy", run.strategy},
           {"mesh", fmt::format("{}x{}", run.replicate, run.shard)},
           {"world_size", base.world_size},
           {"gpu0", run.gpu.empty() ? json(nullptr) : json(run.gpu)},
           {"bf16", run.dtype == "bf16"},
           {"fp8", run.fp8},
           {"approx_tokens_per_rank", std::llround(per_rank)},
           {"steps", summary.steps},
           {"untimed_steps", summary.steps - summary.timed_steps},
           {"nonfinite_steps", summary.nonfinite_steps},
           {"skipped_steps", summary.skipped_steps},
           {"samples", summary.totals.samples},
           {"tokens", summary.totals.real},
           {"padded_tokens", summary.totals.padded},
           {"valid_tokens", summary.totals.valid},
           {"peak_source", run.peak_source},
           {"peak_detail", run.peak_detail},
           {"transports", run.transports},
           {"peak_memory_bytes", run.peak_memory_bytes},
           {"planned_memory_bytes", run.planned_memory_bytes},
           {"device_memory_bytes", run.device_memory_bytes},
           {"proportional_memory_bytes", run.proportional_memory_bytes},
           {"checkpoints", run.checkpoints}};
  const std::optional<double> none;
  const bool timed = run.wall_time_s > 0;
  put_speed(out, speed);
  put(out,
      {{"wall_time_s", run.wall_time_s},
       {"checkpoint_stall_s", run.checkpoint_stall_s},
       {"approx_tokens_per_s_per_rank", timed ? per_rank / run.wall_time_s : none},
       {"loss_first", summary.loss_first},
       {"loss_last", summary.loss_last},
       {"loss_min", summary.loss_min},
       {"eval_loss", summary.eval_loss},
       {"eval_loss_min", summary.eval_loss_min},
       {"eval_loss_average", summary.eval_loss_average},
       {"steps_per_s", speed.steps_per_s},
       {"samples_per_s", speed.samples_per_s},
       {"valid_tokens_per_s", speed.valid_tokens_per_s},
       {"padding_fraction", speed.padding_fraction},
       {"compute_fraction", speed.compute_fraction},
       {"mfu_real", speed.mfu_real},
       {"mfu_measured", speed.mfu_measured},
       {"tflops_6n", speed.tflops_6n},
       {"mfu_6n", speed.mfu_6n},
       {"peak_flops_per_rank", base.peak_flops > 0 ? base.peak_flops : none},
       {"peak_measured_flops_per_rank", base.measured_flops > 0 ? base.measured_flops : none}});
  return out;
}

json step_json(const StepRecord& step, const SpeedBase& base) {
  json out{{"step", step.step},   {"epoch", step.epoch},          {"samples", step.samples},
           {"tokens", step.real}, {"padded_tokens", step.padded}, {"valid_tokens", step.valid}};
  put(out, {{"loss", step.loss},
            {"eval_loss", step.eval_loss},
            {"learning_rate", step.learning_rate},
            {"grad_norm", step.grad_norm},
            {"seconds", step.seconds}});
  if (step.nonfinite) out["nonfinite"] = true;
  if (step.skipped) out["skipped"] = true;
  if (step.eval_loss_average) put(out, {{"eval_loss_average", step.eval_loss_average}});
  for (const auto& [unit, norms] : step.norms) {
    json both;
    put(both, {{"gradient", norms.gradient}, {"weight", norms.weight}});
    out["norms"][unit] = std::move(both);
  }
  put_speed(out, speed_of(step, base));
  return out;
}

StepLog::StepLog(const std::filesystem::path& file, std::int64_t first_step) : file_(file) {
  write_file_atomic(file, first_step > 1 ? lines_before(file, first_step) : "");
  out_.open(file, std::ios::app);
  if (!out_) fail(ErrorCode::io, "{}: cannot be opened for writing", file.string());
}

void StepLog::add(const StepRecord& step, const SpeedBase& base) {
  out_ << step_json(step, base).dump() << '\n' << std::flush;
  if (!out_) {
    fail(ErrorCode::io, "{}: writing the line of step {} failed (disk full?)", file_.string(),
         step.step);
  }
}

}  // namespace train

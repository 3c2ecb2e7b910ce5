#include "loop/strategy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "loop/engine_model.hpp"
#include "loop/gather_choice.hpp"
#include "model/params.hpp"

namespace train {
namespace {

namespace fsdp = atoll::fsdp;

std::uint64_t largest_unit(const ModelConfig& model) {
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < unit_count(model); ++u) {
    std::int64_t count = 0;
    for (const ParamSpec& spec : param_specs(model, u)) count += spec.count();
    largest = std::max(largest, count);
  }
  return static_cast<std::uint64_t>(largest);
}

// The options that both the planner and the engine use.
fsdp::Options sharding_options(const RunOptions& options, const ModelConfig& model) {
  fsdp::Options sharding;
  sharding.precision = {.param = atoll::dtype_from_name(options.dtype),
                        .reduce = atoll::dtype_from_name(options.reduce_dtype)};
  sharding.accumulation = fsdp::accumulation_from_name(options.accumulate);
  sharding.secondary_shards = options.secondary_shards;
  // A tied head uses its own unit and that of the embedding at once, so one more is prefetched.
  sharding.prefetch = options.prefetch + (model.tied ? 1 : 0);
  sharding.reduce_buffers = options.reduce_buffers;
  return sharding;
}

}  // namespace

ActivationPlan activation_plan(const RunOptions& options, atoll::DeviceKind device) {
  return {.max_tokens = std::int64_t{options.micro_batch} * options.seq,
          .max_seq = options.seq,
          .compute = atoll::dtype_from_name(options.dtype),
          .recompute = options.recompute == "full"        ? Recompute::full
                       : options.recompute == "selective" ? Recompute::selective
                                                          : Recompute::none,
          .head_rows = options.head_rows > 0 ? options.head_rows : usual_head_rows(device)};
}

std::uint64_t bytes_beside_engine(const RunOptions& options, const ModelConfig& model,
                                  const DeviceMemory& memory) {
  return Activations::bytes_for(model, activation_plan(options, memory.kind)) + memory.arithmetic;
}

namespace {

fsdp::StrategyQuestion question(const PlannedRun& run, int micro_batches) {
  const auto& [options, model, mesh, memory] = run;
  fsdp::StrategyQuestion question{
      .mesh = mesh.shape(),
      .rates = fsdp::rates_of(mesh),
      .options = sharding_options(options, model),
      .parameters = static_cast<std::uint64_t>(parameter_count(model)),
      .frozen = frozen_count(model, options.freeze),
      .quantized = quantized_count(model),
      .largest_unit = largest_unit(model),
      .units = static_cast<int>(unit_count(model)),
      .micro_batches = micro_batches,
      // Muon needs 8 bytes for its two states, and about as much for buffers of whole matrices.
      .moment_bytes = options.optimizer == "sgd"    ? 0u
                      : options.optimizer == "muon" ? 16u
                      : options.moments == "bf16"   ? 4u
                                                    : 8u,
      .activation_bytes = bytes_beside_engine(options, model, memory),
      .memory_bytes = options.memory_limit > 0 ? options.memory_limit : memory.bytes};
  // A tied embedding is used at both ends of backward, so no other unit shares its gradient buffer.
  if (model.tied) ++question.options.reduce_buffers;
  return question;
}

// Returns true if the strategy of the options fits with this micro batch; for auto, if one fits.
bool fits(const RunOptions& options, const fsdp::StrategyQuestion& question) {
  const auto estimates = fsdp::choose_strategy(question).estimates;
  return std::ranges::any_of(estimates, [&](const fsdp::StrategyEstimate& estimate) {
    const bool meant =
        options.strategy == "auto" || options.strategy == fsdp::name(estimate.strategy);
    return meant && estimate.fits;
  });
}

}  // namespace

fsdp::StrategyChoice choose_strategy(const PlannedRun& run, int micro_batches) {
  const std::string& given = run.options.strategy;
  if (given != "auto") return {fsdp::strategy_from_name(given), "", {}};
  return fsdp::choose_strategy(question(run, micro_batches));
}

std::uint64_t planned_bytes(const PlannedRun& run, int micro_batches, fsdp::Strategy strategy) {
  const auto estimates = fsdp::choose_strategy(question(run, micro_batches)).estimates;
  const auto found = std::ranges::find(estimates, strategy, &fsdp::StrategyEstimate::strategy);
  return found == estimates.end() ? 0 : found->bytes;
}

MicroBatchChoice largest_micro_batch(const PlannedRun& run, std::int64_t samples) {
  const auto& [options, model, mesh, memory] = run;
  RunOptions tried = options;
  tried.micro_batch = 0;
  const double limit =
      static_cast<double>(options.memory_limit > 0 ? options.memory_limit : memory.bytes) / 1e9;
  for (std::int64_t parts = 1; parts <= samples; ++parts) {
    const auto rows = static_cast<std::int32_t>((samples + parts - 1) / parts);
    if (rows == tried.micro_batch) continue;
    tried.micro_batch = rows;
    const auto asked = question({tried, model, mesh, memory}, static_cast<int>(parts));
    if (!fits(tried, asked)) continue;
    return {rows,
            fmt::format("micro batch: {} of the {} rows of a rank and step, the most that fit "
                        "in {:.1f} GB with {:.0f} % in reserve",
                        rows, samples, limit, 100 * asked.reserve)};
  }
  return {1, fmt::format("micro batch: 1 row, although the plan does not fit in {:.1f} GB; use "
                         "--recompute full, a smaller --seq or {}",
                         limit, options.strategy == "auto" ? "more ranks" : "--strategy auto")};
}

fsdp::Options engine_options(const RunOptions& options, const ModelConfig& model,
                             fsdp::Strategy strategy, const atoll::Device& device,
                             const DeviceMemory& memory) {
  fsdp::Options engine = sharding_options(options, model);
  engine.strategy = strategy;
  // Leaves room for memory beside the engine; the optimizer adds its moments to the plan later.
  if (options.memory_limit > 0) {
    engine.memory_bytes =
        options.memory_limit -
        std::min(options.memory_limit - 1, bytes_beside_engine(options, model, memory));
  }
  engine.device = device;
  engine.plan_only = options.dry_run;
  engine.backend = options.backend;
  engine.gather_units = gather_units(options.gather);
  return engine;
}

fsdp::OptimizerOptions optimizer_options(const RunOptions& options) {
  using Kind = fsdp::OptimizerOptions::Kind;
  return {.kind = options.optimizer == "sgd" ? Kind::sgd : Kind::adamw,
          .beta1 = static_cast<float>(options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .epsilon = static_cast<float>(options.epsilon),
          .weight_decay = static_cast<float>(options.weight_decay),
          .max_norm = static_cast<float>(options.clip),
          .skip_nonfinite = options.skip_nonfinite,
          .moment_dtype = atoll::dtype_from_name(options.moments),
          .seed = options.seed,
          .decay = options.decay == "all" ? fsdp::Decay::all : fsdp::Decay::matrices};
}

}  // namespace train

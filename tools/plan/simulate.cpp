#include "plan/simulate.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "atoll/mesh.hpp"
#include "atoll/optimizer.hpp"
#include "atoll/planner.hpp"
#include "fail.hpp"
#include "loop/engine_model.hpp"
#include "loop/rank_figures.hpp"
#include "model/config.hpp"

namespace plan {
namespace {

namespace fsdp = atoll::fsdp;
using train::require;

// Updates of a step run during the next one, at a speed that follows from the time of the step
// before. So two steps warm up.
constexpr int warmup_steps = 2;
// All passes of a step but the first and the last take the same time. So the time of a step with
// many passes follows from the times of steps with these two numbers of passes.
constexpr int few_passes = 3, most_passes = 5;
constexpr float learning_rate = 1e-3F;

// PyTorch lets NCCL add 16-bit gradients, which atoll adds in f32. Its reductions are simulated as
// reductions of f32 with half the bytes.
bool adds_in_16_bits(const Job& job) {
  return job.framework != train::simulated::Framework::atoll &&
         job.reduce_dtype != atoll::DType::f32;
}

fsdp::Options engine_options(const Job& job, const atoll::Device& device) {
  fsdp::Options options;
  options.strategy = job.strategy;
  options.precision = {.param = job.dtype,
                       .reduce = adds_in_16_bits(job) ? atoll::DType::f32 : job.reduce_dtype};
  // A tied head uses its own unit and that of the embedding at once, so one more is gathered ahead.
  options.prefetch = job.prefetch + (job.model.tied ? 1 : 0);
  options.reduce_buffers = job.reduce_buffers;
  options.device = device;
  options.backend = "simulated";
  return options;
}

train::ActivationPlan activation_plan(const Job& job) {
  return {.max_tokens = job.micro_batch * job.seq,
          .max_seq = job.seq,
          .compute = job.dtype,
          .recompute = job.recompute,
          .head_rows = train::usual_head_rows(job.cluster.is_cpu() ? atoll::DeviceKind::cpu
                                                                   : atoll::DeviceKind::cuda)};
}

fsdp::OptimizerOptions optimizer_options(const Job& job) {
  return {.max_norm = job.clips ? 1.0F : 0.0F,
          .skip_nonfinite = job.clips,
          .moment_dtype = job.moments};
}

atoll::Device device_of(const Job& job) {
  const auto& compute = job.cluster.compute;
  atoll::FabricModel fabric = job.cluster.fabric;
  if (adds_in_16_bits(job)) fabric.sum_bytes = 0.5;
  const auto& costs = train::simulated::costs_of(job.framework);
  auto rates = job.cluster.kernel_gbyte_s;
  rates.try_emplace("adamw", compute.memory_gbyte_s);
  rates["adamw"] /= costs.update_bytes;
  return atoll::simulated::make_device({.name = compute.name,
                                        .memory_gbyte_s = compute.memory_gbyte_s,
                                        .kernel_gbyte_s = rates,
                                        .units = compute.units,
                                        .launch_seconds = compute.launch_s * costs.launch,
                                        .links = fabric.to_text()});
}

// Bytes that a framework reads and writes for each parameter of a unit, in order to copy it after
// each gather, and its gradient before the reduction. `last` is the last micro batch of a step.
double copied_bytes(const Job& job, bool last) {
  if (!train::simulated::costs_of(job.framework).copies_units || job.ranks() == 1) return 0;
  const auto compute = static_cast<double>(atoll::size_of(job.dtype));
  const double gradient = compute + static_cast<double>(atoll::size_of(job.reduce_dtype));
  // DDP reduces once in a step, and gathers nothing.
  if (job.strategy == fsdp::Strategy::no_shard || job.strategy == fsdp::Strategy::shard_optimizer)
    return last ? gradient : 0;
  const bool keeps = job.strategy == fsdp::Strategy::shard_grad ||
                     job.strategy == fsdp::Strategy::hybrid_shard_grad;
  return gradient + (keeps ? 1 : 2) * 2 * compute;
}

// One rank of the job, ready to train.
class Rank {
 public:
  Rank(const Job& job, int rank)
      : job_(job),
        world_(atoll::World::simulated({.rank = rank,
                                        .hosts = job.cluster.hosts,
                                        .ranks_per_host = job.cluster.ranks_per_host})),
        device_(device_of(job)),
        engine_(atoll::Mesh::make(world_, job.mesh), engine_options(job, device_)),
        ops_(train::simulated::make_ops({.compute = job.cluster.compute,
                                         .framework = job.framework,
                                         .times = job.cluster.times,
                                         .not_measured = &not_measured_,
                                         .eager_attention = job.eager_attention,
                                         .fp8 = job.fp8})),
        decoder_(job.model, *ops_),
        compute_(device_.stream({.name = "compute"})) {
    train::add_units(engine_, job.model);
    optimizer_.emplace(engine_, optimizer_options(job));
    activations_.emplace(decoder_.make_activations(activation_plan(job), device_, compute_));
    engine_.memory().activations = activations_->bytes();
    tokens_ = device_.allocate(static_cast<std::size_t>(3 * job.micro_batch * job.seq) * 4);
    if (job.framework == train::simulated::Framework::atoll)
      figures_ =
          device_.allocate(static_cast<std::size_t>(job.ranks()) * sizeof(train::RankFigures));
    engine_.refresh();  // a simulated device has no values to set
  }

  // A step of `micro_batches` passes. The next step has `next` passes.
  void step(int micro_batches, int next) {
    const double begun = atoll::simulated::host_time(device_);
    const atoll::View ids = tokens_.view(atoll::DType::i32);
    const auto count = static_cast<std::uint64_t>(job_.micro_batch * job_.seq);
    const train::Batch batch{.rows = job_.micro_batch,
                             .seq = job_.seq,
                             .tokens = ids.part(0, count),
                             .labels = ids.part(count, count)};
    const train::Step step{compute_, batch, *activations_};
    decoder_.begin(step);
    const bool is_atoll = job_.framework == train::simulated::Framework::atoll;
    for (int micro = 0; micro < micro_batches; ++micro) {
      const bool last = micro + 1 == micro_batches;
      if (last && is_atoll) optimizer_->update_in_backward(learning_rate);
      if (!next_pass_) open_pass(micro, micro_batches);
      train::train_micro_batch(engine_, std::move(*next_pass_), decoder_, step,
                               [&](const fsdp::Unit& unit, const auto&) { copy(unit, last); });
      next_pass_.reset();
    }
    optimizer_->step(learning_rate, compute_, step_options());
    if (is_atoll)
      open_pass(0, next);  // like the trainer, which gathers for the next step during the updates
    compute_.synchronize();
    pass_s_ = (atoll::simulated::host_time(device_) - begun) / micro_batches;
  }

  fsdp::Engine& engine() { return engine_; }
  const atoll::Device& device() const { return device_; }
  const atoll::Stream& compute() const { return compute_; }
  const std::set<std::string>& not_measured() const { return not_measured_; }

 private:
  void open_pass(int micro, int of) {
    next_pass_.emplace(engine_.begin({.micro = micro, .of = of}, compute_));
  }

  // Simulates the copies that a framework makes. The copies of forward are simulated in backward,
  // too, which hardly changes the time of the step.
  void copy(const fsdp::Unit& unit, bool last) {
    const double bytes = copied_bytes(job_, last) * static_cast<double>(unit.count());
    if (bytes == 0) return;
    atoll::simulated::run(compute_, {.name = "copy",
                                     .seconds = atoll::moving_seconds(job_.cluster.compute, bytes),
                                     .use = {.compute = 1, .memory = 1},
                                     .crowded_speed = train::simulated::crowded_elementwise});
  }

  // Returns the same options as atoll-train on GPUs.
  fsdp::StepOptions step_options() {
    if (job_.framework != train::simulated::Framework::atoll || job_.cluster.is_cpu()) return {};
    if (pass_s_ <= 0) return {};
    blocks_ = fsdp::blocks_beside_forward(engine_.memory(), pass_s_ / 4, blocks_);
    return {.beside_next_pass = *blocks_ > 0, .blocks_beside = *blocks_};
  }

  const Job& job_;
  std::set<std::string> not_measured_{};  // operations without a measured time; `ops_` adds them
  double pass_s_ = 0;                     // seconds of a micro batch in the newest step
  std::optional<unsigned> blocks_{};      // thread blocks for updates beside the newest forward
  atoll::World world_;
  atoll::Device device_;
  fsdp::Engine engine_;
  std::unique_ptr<train::Ops> ops_;
  train::Decoder decoder_;
  atoll::Stream compute_;
  std::optional<fsdp::Optimizer> optimizer_;
  std::optional<train::Activations> activations_;
  atoll::Buffer tokens_, figures_;
  std::optional<fsdp::Pass> next_pass_;  // the next pass, which may begin before its step
};

// Bytes of the fp8 copies for the largest group of linear layers: gate and up, in backward.
std::uint64_t fp8_bytes(const Job& job) {
  if (!job.fp8) return 0;
  const std::int64_t tokens = job.micro_batch * job.seq;
  const auto [hidden, ffn] = std::pair(job.model.hidden, job.model.ffn);
  return static_cast<std::uint64_t>(tokens * (hidden + 2 * ffn) + hidden * ffn);
}

void check(const Job& job) {
  require(job.mesh.replicate >= 1 && job.mesh.shard >= 1 &&
              job.mesh.replicate * job.mesh.shard == job.ranks(),
          "the mesh {} x {} does not have the {} ranks of the job", job.mesh.replicate,
          job.mesh.shard, job.ranks());
  require(job.seq >= 1 && job.micro_batch >= 1 && job.micro_batches >= 1,
          "sequence, micro batch and number of micro batches must be at least 1");
  constexpr std::int64_t most_tokens = std::int64_t{1} << 28;
  require(job.seq <= most_tokens && job.micro_batch <= most_tokens / job.seq,
          "{} rows of {} tokens in a pass are too many: at most {} tokens", job.micro_batch,
          job.seq, most_tokens);
}

std::int64_t begin_of(const std::vector<atoll::TraceRecord>& records) {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  for (const auto& record : records) begin = std::min(begin, record.begin_ns);
  return begin;
}

// Runs a step of `micro_batches` passes, and returns its times. The next step has `next` passes.
Prediction measure_step(Rank& rank, int micro_batches, int next, bool trace) {
  auto& scheduler = rank.engine().scheduler();
  scheduler.take_records();
  const double begin = atoll::simulated::host_time(rank.device());
  const auto exposed_before = rank.compute().exposed_communication();
  rank.step(micro_batches, next);
  Prediction result;
  result.step_s = atoll::simulated::host_time(rank.device()) - begin;
  result.exposed_s =
      std::chrono::duration<double>(rank.compute().exposed_communication() - exposed_before)
          .count();
  result.compute_s = result.step_s - result.exposed_s;
  auto log = scheduler.take_records();
  result.communication_s = static_cast<double>(atoll::communication_ns(log.records)) * 1e-9;
  if (trace) result.trace = std::move(log.records);
  return result;
}

// Adds the time of the passes of `job` beyond most_passes to `most`, a step of most_passes. `few`
// is a step of few_passes.
void extend(const Job& job, const Prediction& few, Prediction& most) {
  const double times =
      (job.micro_batches - most_passes) / static_cast<double>(most_passes - few_passes);
  for (const auto member : {&Prediction::step_s, &Prediction::exposed_s, &Prediction::compute_s,
                            &Prediction::communication_s}) {
    most.*member += times * (most.*member - few.*member);
  }
}

Prediction measure(Rank& rank, const Job& job, bool trace) {
  // Updates of the previous step run during the traced step, so recording begins before that step.
  if (trace) rank.engine().scheduler().set_recording(atoll::Recording::work);
  const bool extends = job.micro_batches > most_passes && !trace;
  const int passes = extends ? few_passes : job.micro_batches;
  for (int i = 0; i < warmup_steps; ++i) rank.step(passes, passes);
  if (!extends) return measure_step(rank, passes, passes, trace);
  const Prediction few = measure_step(rank, few_passes, most_passes, false);
  Prediction most = measure_step(rank, most_passes, most_passes, false);
  extend(job, few, most);
  return most;
}

void rebase(std::vector<atoll::TraceRecord>& records) {
  const std::int64_t first = begin_of(records);
  for (auto& record : records) {
    record.begin_ns -= first;
    record.end_ns -= first;
  }
}

}  // namespace

int micro_batches_of(std::int64_t global_batch, std::int64_t once) {
  constexpr std::int64_t most = 1 << 20;
  require(global_batch / once <= most,
          "a global batch of {} rows needs more than {} micro batches of {} rows", global_batch,
          most, once);
  return static_cast<int>(global_batch / once);
}

Prediction simulate(const Job& job, const SimulationOptions& options) {
  check(job);
  Rank rank(job, options.rank);
  Prediction result = measure(rank, job, options.trace);
  rebase(result.trace);
  result.tokens_per_s = job.tokens() / result.step_s;
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(job.micro_batch), job.seq);
  const double flops =
      train::training_flops(job.model, rows) * job.micro_batches * job.ranks() / result.step_s;
  const double peak =
      job.dtype == atoll::DType::f32 ? job.cluster.compute.peak_f32 : job.cluster.compute.peak_bf16;
  result.mfu = flops / (peak * job.ranks());
  result.memory = rank.engine().memory();
  const double logits = static_cast<double>(job.micro_batch * job.seq * job.model.vocab) *
                        train::simulated::costs_of(job.framework).logit_bytes;
  result.bytes = rank.device().peak_allocated_bytes() + job.cluster.compute.reserved_bytes +
                 static_cast<std::uint64_t>(logits) + fp8_bytes(job);
  const auto limit = job.cluster.compute.memory_bytes;
  result.fits = limit == 0 || result.bytes + job.cluster.process_bytes <= limit;
  result.not_measured.assign(rank.not_measured().begin(), rank.not_measured().end());
  return result;
}

}  // namespace plan

#include "loop/gather_choice.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>

#include "loop/clock.hpp"
#include "loop/setup.hpp"
#include "model/normal_values.hpp"
#include "model/params.hpp"
#include "report/log.hpp"

namespace train {
namespace {

using atoll::ComputeUnits;
using atoll::fsdp::Strategy;

// Returns the axis over which a strategy gathers, or null if it gathers nothing.
const atoll::Axis* gather_axis(const atoll::Mesh& mesh, Strategy strategy) {
  if (strategy == Strategy::no_shard) return nullptr;
  const bool hybrid = strategy == Strategy::hybrid_shard || strategy == Strategy::hybrid_shard_grad;
  return &mesh.axis(hybrid ? "shard" : "world");
}

std::uint64_t layer_parameters(const ModelConfig& model) {
  std::int64_t count = 0;
  for (const ParamSpec& spec : param_specs(model, 1)) count += spec.count();
  return static_cast<std::uint64_t>(count);
}

// Measures gathers of a layer's parameters while matrix products run.
class Trial {
 public:
  // `device` has its own count of allocations, so that the trial does not count as memory of the
  // training.
  Trial(const atoll::Axis& axis, const RunOptions& options, const ModelConfig& model, Ops& ops,
        const atoll::Device& device)
      : ops_(ops),
        shape_{std::int64_t{options.micro_batch} * options.seq, model.hidden, model.ffn},
        dtype_(atoll::dtype_from_name(options.dtype)),
        x_(matrix(device, shape_.tokens, shape_.in)),
        weight_(matrix(device, shape_.out, shape_.in)),
        y_(matrix(device, shape_.tokens, shape_.out)),
        compute_(device.stream({.name = "products"})),
        lane_(device.stream({.name = "gathers", .priority = atoll::StreamPriority::high})),
        copy_engines_(atoll::Communicator::open(axis, {.name = "trial.copy_engines",
                                                       .backend = options.backend,
                                                       .device = device,
                                                       .compute_units = ComputeUnits::none})),
        sms_(atoll::Communicator::open(
            axis,
            {.name = "trial.sms", .parent = &copy_engines_, .compute_units = ComputeUnits::few})) {
    const auto ranks = static_cast<std::uint64_t>(axis.size());
    const std::uint64_t layer = layer_parameters(model), grain = atoll::bucket_granularity;
    const std::uint64_t count = (layer + ranks * grain - 1) / (ranks * grain) * grain;
    const std::size_t bytes = count * size_of(dtype_);
    shard_ = atoll::allocate(device, bytes, {copy_engines_, sms_});
    whole_ = atoll::allocate(device, ranks * bytes, {copy_engines_, sms_});
    const auto weights = static_cast<std::uint64_t>(shape_.in * shape_.out);
    products_ = std::max<std::uint64_t>(1, (layer + weights / 2) / weights);
    for (const atoll::Buffer* buffer : {&x_, &weight_, &shard_})
      fill_normal(compute_, buffer->view(dtype_));
  }

  // Seconds of a layer: its products and its gather run concurrently, and both must end.
  double with_copy_engines() { return seconds(copy_engines_); }
  double with_sms() { return seconds(sms_); }
  std::size_t bytes() const { return whole_.bytes(); }

 private:
  atoll::Buffer matrix(const atoll::Device& device, std::int64_t rows, std::int64_t columns) const {
    return device.allocate(static_cast<std::size_t>(rows * columns) * size_of(dtype_));
  }

  // Returns the shortest time of some rounds. The first round also connects the ranks, loads
  // kernels and chooses algorithms, and does not count.
  double seconds(atoll::Communicator& comm) {
    constexpr int rounds = 4, layers = 4;
    const LinearsForward::Layer linear{shape_.out, weight_.view(dtype_), y_.view(dtype_)};
    double best = std::numeric_limits<double>::infinity();
    for (int round = 0; round <= rounds; ++round) {
      comm.barrier(lane_).synchronize();
      const auto start = Clock::now();
      for (int layer = 0; layer < layers; ++layer) {
        for (std::uint64_t i = 0; i < products_; ++i) {
          ops_.linears_forward(compute_, {shape_.tokens, shape_.in, x_.view(dtype_), {&linear, 1}});
        }
        std::ignore = comm.all_gather(shard_.view(dtype_), whole_.view(dtype_), lane_);
      }
      compute_.synchronize();
      lane_.synchronize();
      const double taken = seconds_since(start);
      if (round > 0) best = std::min(best, taken / layers);
    }
    return best;
  }

  Ops& ops_;
  LinearShape shape_;
  atoll::DType dtype_;
  // Members are destroyed from the last to the first: the destructors of streams wait for products,
  // whose matrices come before them.
  atoll::Buffer x_, weight_, y_;
  atoll::Stream compute_, lane_;
  atoll::Communicator copy_engines_, sms_;
  atoll::Buffer shard_, whole_;
  std::uint64_t products_ = 1;  // number of products that together cost as much as a layer
};

// Returns the time of the slowest rank, in seconds. Collective.
double slowest(atoll::World& world, const char* what, double seconds) {
  const auto nanoseconds = exchange_numbers(world, what, static_cast<std::int64_t>(seconds * 1e9));
  return static_cast<double>(std::ranges::max(nanoseconds)) * 1e-9;
}

}  // namespace

ComputeUnits gather_units(const std::string& gather) {
  return gather == "sms" ? ComputeUnits::few : ComputeUnits::none;
}

void choose_gather(atoll::World& world, RunOptions& options, const ModelConfig& model,
                   const atoll::Mesh& mesh, const Machine& machine, Strategy strategy) {
  if (options.gather != "auto") return;
  const atoll::Axis* const axis = gather_axis(mesh, strategy);
  if (axis == nullptr || axis->size() == 1) return;
  if (machine.device().kind() == atoll::DeviceKind::cpu) return;
  Trial trial(*axis, options, model, *machine.ops, atoll::Device::cuda(machine.device().ordinal()));
  const double copies =
      slowest(world, "train/setup/gather/copy_engines", trial.with_copy_engines());
  const double sms = slowest(world, "train/setup/gather/sms", trial.with_sms());
  constexpr double clearly_faster = 0.98;
  options.gather = sms < clearly_faster * copies ? "sms" : "copy-engines";
  if (world.rank() != 0) return;
  log::info(
      "--gather {}: a gather of {:.1f} MB and the products beside it take {:.3f} ms with copy "
      "engines, where NCCL uses them, and {:.3f} ms with SMs",
      options.gather, 1e-6 * static_cast<double>(trial.bytes()), 1e3 * copies, 1e3 * sms);
}

}  // namespace train

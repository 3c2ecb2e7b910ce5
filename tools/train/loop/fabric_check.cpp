#include "loop/fabric_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "atoll/communicator.hpp"
#include "atoll/tooling/doctor.hpp"
#include "fail.hpp"
#include "loop/clock.hpp"
#include "report/log.hpp"
#include "report/phase.hpp"

namespace train {
namespace {

namespace fsdp = atoll::fsdp;
using Collective = std::function<atoll::Work(atoll::Stream&)>;

// Bytes of the unsharded tensor. Larger tensors hardly reach higher bandwidths.
constexpr std::uint64_t tensor_bytes = std::uint64_t{64} << 20;
constexpr int most_repeats = 8;
constexpr double most_seconds = 0.5;  // limit for all repeats of one collective

// Seconds of one operation on the slowest rank of the job. Slow operations run only a few times.
double seconds_of(atoll::World& world, atoll::Stream& stream, const Collective& collective) {
  const auto run = [&](int times) {
    world.barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) collective(stream).wait(stream);
    stream.synchronize();
    const auto mine = std::chrono::nanoseconds(Clock::now() - begin).count();
    const auto slowest = std::ranges::max(exchange_numbers(world, "train/fabric", mine));
    return static_cast<double>(slowest) / 1e9 / times;
  };
  const double first = run(1);  // the first operation also opens connections
  return run(std::clamp(static_cast<int>(most_seconds / first), 1, most_repeats));
}

// Returns the rate that the axis should reach; 0 if it is unknown.
double promised_rate(atoll::World& world, const atoll::Axis& axis, double between_hosts) {
  const auto& placements = world.placements();
  const auto host_of = [&](int rank) { return placements[static_cast<std::size_t>(rank)].host; };
  const bool spans = std::ranges::any_of(
      axis.ranks, [&](int rank) { return host_of(rank) != host_of(axis.ranks.front()); });
  const auto spanning = exchange_numbers(world, "train/fabric/spans", spans ? 1 : 0);
  if (between_hosts > 0 && std::ranges::max(spanning) == 1) return between_hosts;
  return axis.rate.is_known() && !axis.rate.is_assumed ? axis.rate.gbyte_s : 0;
}

void measure(atoll::World& world, const atoll::Axis& axis, const RunOptions& options,
             const atoll::Device& device, std::vector<FabricRate>& rates) {
  if (axis.size() == 1) return;
  auto comm = atoll::Communicator::open(
      axis, {.name = "fabric." + axis.name, .backend = options.backend, .device = device});
  atoll::Stream stream = device.stream({.name = "fabric"});
  const auto n = static_cast<std::uint64_t>(axis.size());
  const std::uint64_t part = tensor_bytes / sizeof(float) / n;
  const atoll::Buffer memory = atoll::allocate(device, part * n * sizeof(float), {comm});
  const atoll::View whole = memory.view(atoll::DType::f32);
  const atoll::View mine = whole.part(part * static_cast<std::uint64_t>(comm.rank()), part);
  const double bytes =
      static_cast<double>(whole.bytes()) * static_cast<double>(n - 1) / static_cast<double>(n);
  const double promised = promised_rate(world, axis, options.fabric_rate);
  const auto add = [&](const char* name, double factor, const Collective& collective) {
    const double seconds = seconds_of(world, stream, collective);
    rates.push_back({axis.name, axis.size(), name, factor * bytes / seconds / 1e9, promised});
  };
  add("all_gather", 1, [&](atoll::Stream& s) { return comm.all_gather(mine, whole, s); });
  add("reduce_scatter", 1,
      [&](atoll::Stream& s) { return comm.reduce_scatter(whole, mine, atoll::ReduceOp::sum, s); });
  add("all_reduce", 2,
      [&](atoll::Stream& s) { return comm.all_reduce(whole, whole, atoll::ReduceOp::sum, s); });
}

// The axes that the strategy communicates on.
std::vector<std::string> axes_of(const Setup& setup) {
  const auto shape = setup.mesh.shape();
  const bool hybrid = setup.choice.strategy == fsdp::Strategy::hybrid_shard ||
                      setup.choice.strategy == fsdp::Strategy::hybrid_shard_grad;
  if (hybrid || shape.replicate == 1 || shape.shard == 1) return {"shard", "replicate"};
  return {"world"};
}

// Logs what atoll::diagnose() finds. Returns the evidence of the findings that are errors, or "".
std::string diagnose(atoll::World& world, const atoll::Topology& topology) {
  const auto sites = atoll::locate_ranks(topology, world);
  std::string errors;
  for (const atoll::Finding& finding : atoll::diagnose(topology, sites).findings) {
    if (finding.severity == atoll::Severity::info) continue;
    if (world.rank() == 0) log::warn("{}", atoll::to_line(finding));
    if (finding.severity != atoll::Severity::error) continue;
    errors += (errors.empty() ? "" : "; ") + finding.evidence;
  }
  return errors;
}

}  // namespace

std::string to_line(const FabricRate& rate) {
  std::string text = fmt::format("{} on axis {} ({} ranks): busbw {:.3g} GB/s", rate.collective,
                                 rate.axis, rate.ranks, rate.measured);
  if (rate.promised > 0) {
    return text + fmt::format(", {:.0f} % of {:.4g} GB/s", 100 * rate.measured / rate.promised,
                              rate.promised);
  }
  return text + "; the topology knows no rate to compare with";
}

std::string fabric_failure(const std::vector<FabricRate>& rates, double share) {
  for (const FabricRate& rate : rates) {
    if (rate.promised <= 0 || rate.measured >= share * rate.promised) continue;
    return fmt::format(
        "--check-fabric {}: {}: look for adapters that no rank uses, a lost GPUDirect RDMA or "
        "slow ports (atoll-topo --doctor, atoll-busbw --pairs), or lower the share",
        share, to_line(rate));
  }
  return {};
}

void check_fabric(atoll::World& world, const RunOptions& options, const Setup& setup,
                  double share) {
  const Phase phase("checking the fabric");
  const auto topology = atoll::Topology::discover(world);
  const std::string errors = diagnose(world, topology);
  if (!errors.empty()) fail(ErrorCode::unsupported, "--check-fabric: {}", errors);
  std::vector<FabricRate> rates;
  for (const std::string& axis : axes_of(setup)) {
    measure(world, setup.mesh.axis(axis), options, setup.machine.device(), rates);
  }
  if (world.rank() == 0) {
    for (const FabricRate& rate : rates) log::info("fabric: {}", to_line(rate));
    if (rates.empty()) {
      log::info("fabric: a run of one rank uses no links");
    } else if (std::ranges::none_of(rates, [](const FabricRate& r) { return r.promised > 0; })) {
      log::warn(
          "--check-fabric {}: nothing could be judged, because the topology has no rate of any "
          "link; give the rate of a host's adapters by --fabric-rate",
          share);
    }
  }
  const std::string failure = fabric_failure(rates, share);
  if (!failure.empty()) fail(ErrorCode::unsupported, "{}", failure);
}

}  // namespace train

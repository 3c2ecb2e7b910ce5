#include "suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "checks.hpp"
#include "launching_device.hpp"

namespace conformance {
namespace {

struct Check {
  std::string_view name;
  void (*run)(Rank&);
};

constexpr Check all_checks[] = {
    {"all_gather", check_all_gather},
    {"broadcast", check_broadcast},
    {"all_to_all", check_all_to_all},
    {"reduce_scatter", check_reduce_scatter},
    {"all_reduce", check_all_reduce},
    {"gather", check_gather},
    {"scatter", check_scatter},
    {"reduce", check_reduce},
    {"all_gather_v", check_all_gather_v},
    {"reduce_scatter_v", check_reduce_scatter_v},
    {"gather_v", check_gather_v},
    {"all_to_all_v", check_all_to_all_v},
    {"factors", check_factors},
    {"order of summation", check_order_of_summation},
    {"sums in blocks", check_sums_in_blocks},
    {"send and recv", check_send_recv},
    {"group", check_group},
    {"tags", check_tags},
    {"barrier", check_barrier},
    {"wait orders streams", check_wait_orders_streams},
    {"calls return at once", check_calls_return_at_once},
    {"order across streams", check_order_across_streams},
    {"many in flight", check_many_in_flight},
    {"two communicators", check_two_communicators},
    {"progress beside compute", check_progress_beside_compute},
    {"mesh axes", check_mesh_axes},
    {"split", check_split},
    {"settings", check_settings},
    {"abort", check_abort},
    {"allocation", check_allocation},
    {"registered memory", check_registered_memory},
    {"mixed memory", check_mixed_memory},
    {"memory of the caller", check_caller_memory},
    {"invalid arguments", check_invalid_arguments},
    {"unknown backend", check_unknown_backend},
};

// Returns the device on which `backend` is tested. The test backend `launching` is the host backend
// behind the interface of a GPU backend, so it needs a device that looks like a GPU.
atoll::Device device_of(const atoll::World& world, std::string_view backend) {
  if (backend == "launching") {
    return atoll::Device(std::make_shared<atoll_test::LaunchingDevice>());
  }
  if (backend != "nccl") return atoll::Device::cpu();
  return atoll::Device::cuda(world.local_rank() % atoll::Device::cuda_count());
}

// Returns the reason why `backend` cannot be tested on this machine, or "" if it can.
std::string missing(atoll::World& world, std::string_view backend) {
  // The backend `launching` needs its own device, and available_backends() would not use that
  // device.
  if (backend == "launching") return "";
  const auto kind = backend == "nccl" ? atoll::DeviceKind::cuda : atoll::DeviceKind::cpu;
  for (const auto& info : atoll::available_backends(world, kind)) {
    if (info.name == backend) return info.unusable;
  }
  return "not built";
}

// Prints without delay, so that the output of a run that hangs ends with the check that hangs.
void print_now(std::string_view text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

int run_checks(atoll::World& world, const std::string& backend) {
  const auto mesh = atoll::Mesh::make(world, {.replicate = 1, .shard = world.size()});
  const atoll::Device device = device_of(world, backend);
  const ElementsOn elements(device);
  auto comm = atoll::Communicator::open(mesh.axis("shard"),
                                        {.name = "", .backend = backend, .device = device});
  atoll::Stream stream = comm.device().stream({.name = "conformance"});
  Report report(world.rank());
  report.expect(comm.backend() == backend, "opened the backend that was asked for");
  report.expect(comm.rank() == world.rank() && comm.size() == world.size(), "place in the axis");
  Rank self{world, comm, stream, report};
  std::vector<Check> checks(std::begin(all_checks), std::end(all_checks));
  if (std::getenv("ATOLL_TEST_LARGE") != nullptr && device.kind() == atoll::DeviceKind::cpu) {
    checks.push_back({"large counts", check_large_counts});
  } else if (world.rank() == 0) {
    fmt::print("left out: large counts (on the host, where ATOLL_TEST_LARGE is set)\n");
  }
  // The nccl backend requires registered memory on all ranks or on none (see communicator.hpp).
  if (backend == "nccl") {
    std::erase_if(checks, [](const Check& check) { return check.run == check_mixed_memory; });
  }
  if (!has_order_of_summation(self)) {
    std::erase_if(checks, [](const Check& check) { return check.run == check_order_of_summation; });
    if (world.rank() == 0)
      fmt::print("left out: order of summation (the backend promises none in this layout)\n");
  }
  if (!has_sums_in_blocks(self)) {
    std::erase_if(checks, [](const Check& check) { return check.run == check_sums_in_blocks; });
  }
  const auto start = std::chrono::steady_clock::now();
  for (const Check& check : checks) {
    const std::uint64_t before = report.checks();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (world.rank() == 0) print_now(fmt::format("{:8.3f} s: {}\n", time.count(), check.name));
    check.run(self);
    report.expect(report.checks() > before, fmt::format("{} checked nothing", check.name));
  }
  fmt::print("rank {} of {}: {} checks on {}, {} failed\n", world.rank(), world.size(),
             report.checks(), backend, report.failures());
  return report.failures() == 0 ? 0 : failed;
}

}  // namespace

bool Rank::sums_as_host() const {
  const auto& one = backend();
  return one == "host" || one == "verbs" || one == "levelless" || one == "launching";
}

bool Rank::rounds_per_level(DType dtype) const {
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  if (!half || !sums_as_host() || world.config().deterministic != 0) return false;
  const auto& places = world.placements();
  return std::any_of(places.begin(), places.end(),
                     [&](const auto& place) { return place.host != places.front().host; });
}

// A partial sum of contributions is below 256 x ranks. One rounding changes it by at most 2^-8 of
// its value in bf16, and by less in f16. Rounding the sums of all hosts adds at most the error of
// one rounding of the total, which is itself rounded, so the result has at most two such errors.
double Rank::slack(DType dtype, ReduceOp op) const {
  const bool sums = op == ReduceOp::sum || op == ReduceOp::avg;
  return sums && rounds_per_level(dtype) ? 2.0 * size() : 0.0;
}

int run_rank(atoll::Config config, const std::string& backend) {
  try {
    atoll::World world = atoll::World::from_env(std::move(config));
    const std::string reason = missing(world, backend);
    if (!reason.empty()) {
      fmt::print("rank {}: skipped, backend {}: {}\n", world.rank(), backend, reason);
      return skipped;
    }
    return run_checks(world, backend);
  } catch (const std::exception& error) {
    fmt::print(stderr, "FAILED: {}\n", error.what());
    return failed;
  }
}

}  // namespace conformance

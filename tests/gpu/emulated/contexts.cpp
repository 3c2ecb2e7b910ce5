// Checks that the nccl backend creates CUDA contexts only on the GPUs that it uses.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/device.hpp"
#include "atoll/fsdp.hpp"
#include "atoll/mesh.hpp"
#include "atoll/schedule.hpp"
#include "device/ops.hpp"
#include "plugins/fake_gpu.hpp"
#include "thread_ranks.hpp"

namespace {

constexpr int first_device = 3;

struct Held {
  std::optional<atoll::Communicator> comm;
  atoll::Buffer registered;
};

atoll::Device device_of(const atoll::World& world) {
  return atoll::Device::cuda(first_device + world.rank());
}
atoll::Mesh mesh_of(atoll::World& world) { return atoll::Mesh::make(world, {1, world.size()}); }

// Opens a communicator and uses it. Runs on a new thread, so the current device of the thread is
// device 0.
Held open_and_use(atoll::World& world) {
  const auto device = device_of(world);
  const auto mesh = mesh_of(world);
  Held held{atoll::Communicator::open(mesh.axis("world"),
                                      {.name = "one", .backend = "nccl", .device = device}),
            {}};
  auto stream = device.stream();
  held.registered = atoll::allocate(device, 4096, {*held.comm});
  stream.zero(held.registered.data(), held.registered.bytes());
  const atoll::View data = held.registered.view(atoll::DType::f32);
  held.comm->all_reduce(data, data, atoll::ReduceOp::sum, stream).synchronize();
  const atoll::Buffer norm = device.allocate(4 * sizeof(double));
  const atoll::View doubles = norm.view(atoll::DType::f64);
  device.ops().clip_factor(stream, doubles.part(0, 3), doubles.part(3, 1), {});
  stream.synchronize();
  return held;
}

// Runs `body` and checks that no NCCL resources are left and that only the ranks' GPUs have
// contexts. `per_host` is the number of ranks on each simulated host; 0 puts all on one host.
void run(int ranks, const std::function<void(atoll::World&)>& body, int per_host = 0) {
  emulated::forget_contexts();
  atoll_test::run_thread_ranks(ranks, body, [&](atoll::Config& config) {
    config.log = "error";
    config.owns_process = 1;
    config.plugin_path = atoll::Config::from_env().plugin_path;
    if (per_host == 0) return;
    config.host_id = std::to_string(config.rank / per_host);
    config.algorithm = "all_gather:two_level,reduce_scatter:two_level";
  });
  CHECK(fake_gpu::left().communicators == 0);
  CHECK(fake_gpu::left().windows == 0);
  // NcclMemFree succeeds only after the windows of the memory are closed.
  CHECK(fake_gpu::left().allocations == 0);
  for (int device = 0; device < atoll::Device::cuda_count(); ++device) {
    CAPTURE(device);
    const bool used = device >= first_device && device < first_device + ranks;
    CHECK(emulated::has_context(device) == used);
  }
}

// Destroys memory and communicator on new threads, which have used no device. On a thread that has
// used a device, that device may still be current, which would hide a missing cudaSetDevice.
void close_elsewhere(Held held) {
  std::thread([memory = std::move(held.registered)] {}).join();
  std::thread([comm = std::exchange(held.comm, std::nullopt)] {}).join();
}

}  // namespace

TEST_CASE("a communicator and its memory are closed on a thread that has used no GPU") {
  run(2, [](atoll::World& world) { close_elsewhere(open_and_use(world)); });
}

TEST_CASE("registered memory that is freed stays mapped until its communicator is closed") {
  run(2, [](atoll::World& world) {
    Held held = open_and_use(world);
    const auto device = device_of(world);
    held.registered = {};
    auto stream = device.stream();
    const atoll::Buffer plain = device.allocate(4096);
    const atoll::View data = plain.view(atoll::DType::f32);
    held.comm->all_reduce(data, data, atoll::ReduceOp::sum, stream).synchronize();
    world.barrier();
    CHECK(fake_gpu::left().windows == 2);  // each of the two ranks has one window
    CHECK(fake_gpu::left().allocations == 2);
    world.barrier();
    held.registered = atoll::allocate(device, 4096, {*held.comm});
    held.comm.reset();
  });
}

TEST_CASE("an aborted communicator and its memory are closed on a thread that has used no GPU") {
  run(2, [](atoll::World& world) {
    Held held = open_and_use(world);
    world.barrier();
    world.fail("to abort it");
    close_elsewhere(std::move(held));
  });
}

TEST_CASE("gathers ask NCCL for copy engines, and reductions for few compute units") {
  run(2, [](atoll::World& world) {
    const auto device = device_of(world);
    const auto mesh = mesh_of(world);
    const auto expect = [&](const char* lane, int policy) {
      world.barrier();
      CHECK(fake_gpu::policy(lane) == policy);
      world.barrier();
    };
    {
      const atoll::Scheduler scheduler(mesh.axis("shard"), {},
                                       {.device = device, .backend = "nccl"});
      expect("shard.gather", NCCL_CTA_POLICY_ZERO);
      expect("shard.reduce", NCCL_CTA_POLICY_EFFICIENCY);
    }
    // gather_units applies to gathers and to reductions that the library sums itself (bf16).
    using enum atoll::ComputeUnits;
    constexpr int zero = NCCL_CTA_POLICY_ZERO, efficiency = NCCL_CTA_POLICY_EFFICIENCY;
    for (const auto& [reduce, units, of_gathers, of_reductions] :
         {std::tuple{atoll::DType::bf16, none, zero, zero},
          {atoll::DType::bf16, few, efficiency, efficiency},
          {atoll::DType::f32, none, zero, efficiency}}) {
      const atoll::fsdp::Engine engine(mesh, {.strategy = atoll::fsdp::Strategy::hybrid_shard,
                                              .precision = {.reduce = reduce},
                                              .device = device,
                                              .backend = "nccl",
                                              .gather_units = units});
      expect("shard.gather", of_gathers);
      expect("shard.reduce", of_reductions);
    }
  });
}

namespace {

// Runs an ordered sum, which the library adds itself. The communicator asks for copy engines.
void sum_in_order(atoll::World& world, bool reserves) {
  const auto device = device_of(world);
  const auto mesh = mesh_of(world);
  auto comm =
      atoll::Communicator::open(mesh.axis("world"), {.name = "sum",
                                                     .backend = "nccl",
                                                     .device = device,
                                                     .deterministic = true,
                                                     .compute_units = atoll::ComputeUnits::none});
  constexpr std::uint64_t part = 1024;
  const auto ranks = static_cast<std::uint64_t>(world.size());
  if (reserves) {
    comm.reserve_scratch(
        comm.scratch_bytes(atoll::Communicator::Sum::reduce_scatter, part, atoll::DType::f32));
  }
  auto stream = device.stream();
  const atoll::Buffer src = atoll::allocate(device, ranks * part * sizeof(float), {comm});
  const atoll::Buffer dst = atoll::allocate(device, part * sizeof(float), {comm});
  stream.zero(src.data(), src.bytes());
  comm.reduce_scatter(src.view(atoll::DType::f32), dst.view(atoll::DType::f32),
                      atoll::ReduceOp::sum, stream)
      .synchronize();
  world.barrier();
}

}  // namespace

TEST_CASE("copy engines run the exchanges of sums, also inside hosts, if scratch is reserved") {
  run(2, [](atoll::World& world) {
    sum_in_order(world, true);
    CHECK(fake_gpu::used_copy_engines("sum"));
    world.barrier();
    sum_in_order(world, false);
    CHECK_FALSE(fake_gpu::used_copy_engines("sum"));
  });
  run(
      4,
      [](atoll::World& world) {
        sum_in_order(world, true);
        CHECK(fake_gpu::used_copy_engines("sum.intra"));
        CHECK_FALSE(fake_gpu::used_copy_engines("sum"));
        CHECK_FALSE(fake_gpu::used_copy_engines("sum.inter"));
        world.barrier();
        sum_in_order(world, false);
        CHECK_FALSE(fake_gpu::used_copy_engines("sum.intra"));
      },
      2);
}

TEST_CASE("after a sum over uneven slices, scratch memory is in a window on all ranks or on none") {
  run(2, [](atoll::World& world) {
    const auto device = device_of(world);
    const auto mesh = mesh_of(world);
    auto comm = atoll::Communicator::open(
        mesh.axis("world"), {.backend = "nccl", .device = device, .deterministic = true});
    constexpr std::uint64_t part = 1024;
    comm.reserve_scratch(
        comm.scratch_bytes(atoll::Communicator::Sum::reduce_scatter, part, atoll::DType::f32));
    auto stream = device.stream();
    const atoll::Buffer memory = atoll::allocate(device, 4 * part * sizeof(float), {comm});
    stream.zero(memory.data(), memory.bytes());
    const atoll::View all = memory.view(atoll::DType::f32);
    const std::vector<std::uint64_t> counts = {part + 512, part - 512};
    const std::uint64_t mine = counts[static_cast<std::size_t>(world.rank())];
    comm.reduce_scatter_v(all.part(0, 2 * part), all.part(2 * part, mine), counts,
                          atoll::ReduceOp::sum, stream)
        .synchronize();
    comm.reduce_scatter(all.part(0, 2 * part), all.part(2 * part, part), atoll::ReduceOp::sum,
                        stream)
        .synchronize();
    world.barrier();
  });
}

TEST_CASE("copy engines that run an exchange are not reported as those of gathers") {
  run(2, [](atoll::World& world) {
    const auto device = device_of(world);
    const auto mesh = mesh_of(world);
    const auto open = [&](const char* name, atoll::ComputeUnits units) {
      return atoll::Communicator::open(
          mesh.axis("world"),
          {.name = name, .backend = "nccl", .device = device, .compute_units = units});
    };
    auto sms = open("sms", atoll::ComputeUnits::few);
    auto engines = open("engines", atoll::ComputeUnits::none);
    auto stream = device.stream();
    const atoll::Buffer memory = atoll::allocate(device, 16 * sizeof(float), {sms, engines});
    stream.zero(memory.data(), memory.bytes());
    const atoll::View whole = memory.view(atoll::DType::f32).part(0, 8);
    const atoll::View other = memory.view(atoll::DType::f32).part(8, 8);
    const atoll::View own = whole.part(4 * static_cast<std::uint64_t>(world.rank()), 4);
    engines.all_to_all(whole, other, stream).synchronize();
    CHECK_FALSE(sms.transports().copy_engines.has_value());
    world.barrier();
    sms.all_gather(own, whole, stream).synchronize();
    world.barrier();
    CHECK(fake_gpu::used_copy_engines("engines"));
    CHECK(sms.transports().copy_engines == false);
    world.barrier();
    // Copy engines cannot gather into memory that is in no window.
    const atoll::Buffer plain = device.allocate(8 * sizeof(float));
    engines.all_gather(own, plain.view(atoll::DType::f32), stream).synchronize();
    world.barrier();
    CHECK(sms.transports().copy_engines == false);
    world.barrier();
    engines.all_gather(own, whole, stream).synchronize();
    world.barrier();
    CHECK(engines.transports().copy_engines == true);
    world.barrier();
  });
}

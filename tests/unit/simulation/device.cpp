// Simulated devices: the clock of streams, shared resources, collectives, and simulated Worlds.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/mesh.hpp"
#include "atoll/planner.hpp"
#include "atoll/tooling/fabric_model.hpp"
#include "device/ops.hpp"
#include "unit/error_text.hpp"

namespace {

using namespace atoll;
using simulated::TimedWork;

Device device_with(double launch = 0, std::uint64_t memory = 0) {
  return simulated::make_device(
      {.name = "test", .memory_bytes = memory, .memory_gbyte_s = 100, .launch_seconds = launch});
}

TimedWork compute(double seconds) {
  TimedWork work;
  work.name = "compute";
  work.seconds = seconds;
  work.use.compute = 1;
  return work;
}

double seconds(Stamp stamp) { return static_cast<double>(stamp.ns().value()) * 1e-9; }

FabricModel links() {
  FabricModel model;
  model.intra_gbyte_s = 100;
  model.intra_step_s = 1e-6;
  model.inter_gbyte_s = 50;
  model.launch_s = 5e-6;
  return model;
}

CollectiveTime time_of(const FabricModel& model, const char* collective, std::uint64_t bytes,
                       int ranks, int hosts = 1) {
  return collective_time(
      model, {.collective = collective, .bytes = bytes, .ranks = ranks, .hosts = hosts});
}

double seconds(const CollectiveTime& time) { return time.latency_s + time.transfer_s; }

}  // namespace

TEST_CASE("a stream waits for events of others, and counts exposed communication") {
  const Device device = device_with();
  Stream a = device.stream({.name = "a"}), b = device.stream({.name = "b"});
  TimedWork transfer;
  transfer.latency = 0.5;
  transfer.seconds = 2;
  transfer.use.intra = 1;
  simulated::run(b, transfer);
  const Event arrived = b.record();
  simulated::run(a, compute(1));
  a.wait(arrived, WaitReason::communication);
  simulated::run(a, compute(1));
  const Stamp end = a.stamp();
  a.synchronize();
  CHECK(seconds(end) == doctest::Approx(3.5));
  CHECK(std::chrono::duration<double>(a.exposed_communication()).count() == doctest::Approx(1.5));
  CHECK(arrived.happened());
}

TEST_CASE("work that shares a resource slows down in proportion") {
  const Device device = device_with();
  Stream a = device.stream({.name = "a"}), b = device.stream({.name = "b"});
  // Together they need 1.25 times the bandwidth, so both run at 4/5 of their speed while the
  // transfer runs, which takes 0.8 s / 0.8 = 1 s.
  TimedWork reading, transfer;
  reading.seconds = 2;
  reading.use.memory = 1;
  transfer.seconds = 0.8;
  transfer.use.memory = 0.25;
  simulated::run(a, reading);
  simulated::run(b, transfer);
  const Stamp end_a = a.stamp(), end_b = b.stamp();
  a.synchronize();
  b.synchronize();
  CHECK(seconds(end_b) == doctest::Approx(1));
  CHECK(seconds(end_a) == doctest::Approx(2.2));
}

TEST_CASE(
    "work that uses a part of the compute units holds it, and other work computes on the rest") {
  // Runs a kernel of 2 s and transfers, each on its own stream. Returns the time when each ends.
  const auto ends = [](double crowded_speed, double units, int transfers) {
    const Device device = device_with();
    std::vector<Stream> streams;
    streams.push_back(device.stream({.name = "kernel"}));
    TimedWork kernel = compute(2), transfer;
    if (crowded_speed > 0) kernel.crowded_speed = crowded_speed;
    transfer.seconds = 0.8;
    transfer.use.compute = units;
    simulated::run(streams[0], kernel);
    for (int i = 0; i < transfers; ++i) {
      streams.push_back(device.stream({.name = "transfer"}));
      simulated::run(streams.back(), transfer);
    }
    std::vector<Stamp> stamps;
    for (Stream& stream : streams) stamps.push_back(stream.stamp());
    streams[0].synchronize();
    std::vector<double> result;
    for (const Stamp& stamp : stamps) result.push_back(seconds(stamp));
    return result;
  };
  const auto one = ends(0, 0.25, 1);
  CHECK(one[0] == doctest::Approx(2.2));
  CHECK(one[1] == doctest::Approx(0.8));
  // During the transfer of 0.8 s the kernel needs two rounds, so it runs at half speed.
  const auto rounds = ends(0.5, 0.25, 1);
  CHECK(rounds[0] == doctest::Approx(2.4));
  CHECK(rounds[1] == doctest::Approx(0.8));
  // Two transfers need 1.5 times all units, so they slow down by 1.5, and the kernel waits.
  const auto crowd = ends(0, 0.75, 2);
  CHECK(crowd[0] == doctest::Approx(3.2));
  CHECK(crowd[1] == doctest::Approx(1.2));
  CHECK(crowd[2] == doctest::Approx(1.2));
}

TEST_CASE("an update of few blocks holds a unit per block, and slows down compute beside it") {
  const Device device = simulated::make_device({.memory_gbyte_s = 3000, .units = 100});
  Stream a = device.stream({.name = "a"}), b = device.stream({.name = "b"});
  const std::uint64_t count = 1'000'000'000;
  const Buffer buffer = device.allocate(count * sizeof(float));
  const View all = buffer.view(DType::f32);
  // The update moves 12 GB, with 20 blocks.
  device.ops().sgd(b, {all, all, {}, 0.1f, 0.0f, nullptr, 20});
  const double update = 12e9 / (20 * bytes_per_s_of_block);
  const double alone = update / 2;
  simulated::run(a, compute(alone));
  const Stamp end = a.stamp(), updated = b.stamp();
  a.synchronize();
  b.synchronize();
  CHECK(seconds(updated) == doctest::Approx(update));
  CHECK(seconds(end) == doctest::Approx(alone / 0.8));  // compute has 80 of 100 units
}

TEST_CASE("the CPU needs time to launch, and work cannot begin before") {
  const Device device = device_with(1);
  Stream a = device.stream({.name = "a"});
  simulated::run(a, compute(0.1));
  simulated::run(a, compute(0.1));
  const Stamp end = a.stamp();
  CHECK(simulated::host_time(device) == doctest::Approx(2));
  a.synchronize();
  CHECK(seconds(end) == doctest::Approx(2.1));
  simulated::spend(device, 10);
  CHECK(simulated::host_time(device) == doctest::Approx(12.1));
}

TEST_CASE("memory is counted, limited and never touched") {
  const Device device = device_with(0, 1 << 20);
  {
    const Buffer buffer = device.allocate(1 << 19);
    CHECK(device.allocated_bytes() == 1 << 19);
    CHECK_THROWS_WITH_AS(device.allocate(1 << 20), doctest::Contains("524288 of 1048576 bytes are"),
                         Error);
    Stream stream = device.stream();
    stream.zero(buffer.data(), buffer.bytes());
    const Stamp end = stream.stamp();
    stream.synchronize();
    CHECK(seconds(end) == doctest::Approx(524288 / 100e9));
  }
  CHECK(device.allocated_bytes() == 0);
  CHECK(device.peak_allocated_bytes() == 1 << 19);
}

TEST_CASE("wrong arguments are refused") {
  CHECK_THROWS_AS(simulated::make_device({.memory_gbyte_s = 0}), Error);
  CHECK_THROWS_AS(simulated::make_device({.units = -1}), Error);
  CHECK_THROWS_AS(simulated::make_device({.launch_seconds = -1}), Error);
  Stream host = Device::cpu().stream({.name = "real"});
  CHECK_THROWS_WITH_AS(simulated::run(host, compute(1)),
                       "simulated::run: the stream real is not of a simulated device", Error);
  CHECK_THROWS_AS(simulated::host_time(Device::cpu()), Error);
  Stream stream = device_with().stream();
  CHECK_THROWS_AS(simulated::run(stream, compute(-1)), Error);
  CHECK_THROWS_AS(World::simulated({.rank = 2, .hosts = 1, .ranks_per_host = 2}), Error);
  CHECK_THROWS_AS(World::simulated({.rank = 0, .hosts = 0, .ranks_per_host = 2}), Error);
}

TEST_CASE("a simulated World has its hosts, and exchanges return this rank's value") {
  World world = World::simulated({.rank = 5, .hosts = 2, .ranks_per_host = 4});
  CHECK(world.rank() == 5);
  CHECK(world.size() == 8);
  CHECK(world.local_rank() == 1);
  CHECK(world.local_size() == 4);
  CHECK(world.hosts().size() == 2);
  CHECK(world.launcher() == "simulated");
  CHECK(world.exchange("key", "value") == std::vector<std::string>(8, "value"));
  world.barrier();
}

TEST_CASE("collectives take the time of the links") {
  World world = World::simulated({.rank = 0, .hosts = 1, .ranks_per_host = 4});
  const Device device = simulated::make_device({.memory_gbyte_s = 100, .links = links().to_text()});
  const Mesh mesh = Mesh::make(world, {1, 4});
  auto shard = Communicator::open(mesh.axis("shard"), {.backend = "simulated", .device = device});
  CHECK(shard.backend() == "simulated");
  Stream stream = device.stream();
  const Buffer whole = device.allocate(4 << 20), part = device.allocate(1 << 20);
  stream.synchronize();
  const double begin = simulated::host_time(device);
  shard.all_gather(part.view(DType::f32), whole.view(DType::f32), stream).synchronize();
  // Latency of 5 us, 3 ring steps of 1 us each, and 3 MiB at 100 GB/s.
  const double expected = 8e-6 + 3.0 * (1 << 20) / 100e9;
  CHECK(simulated::host_time(device) - begin == doctest::Approx(expected).epsilon(1e-6));
}

TEST_CASE("a simulated device without a model of links has no collectives") {
  World world = World::simulated({.rank = 0, .hosts = 1, .ranks_per_host = 2});
  const Mesh mesh = Mesh::make(world, {1, 2});
  CHECK(atoll_test::has(atoll_test::error_of([&] {
                          Communicator::open(mesh.axis("shard"),
                                             {.backend = "simulated", .device = device_with()});
                        }),
                        "set DeviceOptions::links"));
}

TEST_CASE("the time of a collective: rings, rails, limits") {
  FabricModel model = links();
  // Two hosts of one rank on TCP: half the rate of the NIC, and 10 x the latency.
  model.fabric = Fabric::tcp;
  const CollectiveTime tcp = time_of(model, "all_reduce", 100'000'000, 2, 2);
  CHECK(tcp.transfer_s == doctest::Approx(1e8 / 25e9));
  CHECK(tcp.inter == doctest::Approx(1));
  // Four rails share one NIC, so each takes four times as long.
  const CollectiveTime rails = collective_time(
      model,
      {.collective = "all_reduce", .bytes = 100'000'000, .ranks = 2, .hosts = 2, .sharing = 4});
  CHECK(rails.transfer_s == doctest::Approx(4 * tcp.transfer_s));
  // RDMA between hosts with 8 NICs: the published efficiency at 1 GiB on 2 hosts is 0.92.
  model = links();
  model.inter_gbyte_s = 400;
  model.nics = 8;
  model.intra_gbyte_s = 1000;
  const double transfer = time_of(model, "all_gather", 1 << 30, 16, 2).transfer_s;
  const double rate = (1 << 30) * 15.0 / 16 / transfer / 1e9;
  CHECK(rate == doctest::Approx(388 * 0.92).epsilon(0.01));
  // A ring over two hosts is no faster than the links inside them, for large and for small tensors.
  model.intra_gbyte_s = 22;
  for (const char* collective : {"all_gather", "reduce_scatter", "all_reduce"}) {
    for (const std::uint64_t bytes : {std::uint64_t{1} << 20, std::uint64_t{1} << 30})
      CHECK(time_of(model, collective, bytes, 16, 2).transfer_s >=
            time_of(model, collective, bytes, 8).transfer_s);
  }
  model.intra_gbyte_s = 1000;
  model.most_gbyte_s = rate / 2;
  CHECK(time_of(model, "all_gather", 1 << 30, 16, 2).transfer_s == doctest::Approx(2 * transfer));
  // More bytes never take less time, and small tensors take less than a millisecond.
  model.most_gbyte_s = 0;
  for (const int hosts : {2, 16, 128, 2048}) {
    double before = 0;
    for (std::uint64_t bytes = 4; bytes < std::uint64_t{1} << 35; bytes *= 3) {
      const double now = seconds(time_of(model, "all_gather", bytes, 8 * hosts, hosts));
      CHECK(now >= before);
      before = now;
    }
  }
  CHECK(seconds(time_of(model, "all_reduce", 4, 64, 64)) < 1e-3);
  // With one rank per host, the model uses NCCL's PAT, which adds 14 us per doubling of the ranks.
  // With several ranks per host it uses a ring, whose latency grows with every rank.
  const auto gather = [&](int ranks, int hosts) {
    return seconds(time_of(model, "all_gather", 1 << 20, ranks, hosts));
  };
  CHECK(gather(2048, 2048) - gather(512, 512) < 40e-6);
  CHECK(gather(2048, 256) - gather(512, 64) > 1e-3);
}

TEST_CASE("the time of a collective: measured times, and switches that add") {
  FabricModel model = links();
  model.intra_gbyte_s = 361;
  // These rates follow from NCCL 2.27.7 with 8 GiB on 8 H200.
  constexpr std::uint64_t large = std::uint64_t{1} << 33, small = 1 << 10;
  const double ring = seconds(time_of(model, "all_reduce", large, 8));
  const double quick = seconds(time_of(model, "all_reduce", small, 8));
  model.nvls_gbyte_s = 270;
  const double switched = seconds(time_of(model, "all_reduce", large, 8));
  const double busbw = 2 * 7.0 / 8 * static_cast<double>(large) / switched / 1e9;
  CHECK(busbw == doctest::Approx(473).epsilon(0.01));
  CHECK(switched < ring);
  CHECK(seconds(time_of(model, "all_reduce", small, 8)) <= quick);
  // Measured times are interpolated logarithmically; beyond the largest size its rate holds.
  model.measured = {{"all_gather", 2, 1, 1000, 1e-3}, {"all_gather", 2, 1, 4000, 2e-3}};
  CHECK(seconds(time_of(model, "all_gather", 10, 2)) == doctest::Approx(1e-3));
  CHECK(seconds(time_of(model, "all_gather", 2000, 2)) == doctest::Approx(1e-3 * std::sqrt(2)));
  CHECK(seconds(time_of(model, "all_gather", 8000, 2)) == doctest::Approx(4e-3));
  CHECK(time_of(model, "all_gather", 8, 1).transfer_s == 0);
}

TEST_CASE("a model of links survives its text, and other texts are refused") {
  FabricModel model = links();
  model.fabric = Fabric::tcp;
  model.measured = {{"all_reduce", 4, 2, 1 << 20, 0.5}};
  const FabricModel again = FabricModel::from_text(model.to_text());
  CHECK(again.to_text() == model.to_text());
  for (const char* text : {"", "{}", "7", "{\"intra_gbyte_s\": \"fast\"}"}) {
    CHECK_THROWS_AS(FabricModel::from_text(text), Error);
  }
}

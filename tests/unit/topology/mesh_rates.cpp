// Tests of mesh_rates(), which models the bandwidth and latency of groups and axes of a mesh.
#include <doctest/doctest.h>

#include <cmath>

#include "unit/topology/mesh.hpp"

using atoll::GroupRate;
using atoll::IslandState;
using atoll::MeshRates;
using machines::gpu;
using namespace meshes;

TEST_CASE("mesh rates: inside an island, 80 % of what a GPU has, and NCCL's latency of a ring") {
  const Topology topology = machines::hgx(1);
  const GroupRate rate = group_rate(topology, fill_hosts(topology, 0), counting(8));
  CHECK(rate.gbyte_s == doctest::Approx(0.8 * 450));
  CHECK(rate.latency_us == doctest::Approx(8.4 + 7 * 3.4));
  CHECK_FALSE(rate.is_assumed);
  CHECK(rate.is_known());
}

TEST_CASE("mesh rates: a ring over hosts passes all their NICs, a column its own") {
  Topology topology = machines::hgx(2);
  for (const std::string host : {"a", "b"}) machines::add_nic(topology, host, 8 * 400);
  const auto ranks = fill_hosts(topology, 0);
  const MeshRates hybrid = mesh_rates(topology, ranks, by_hand(2, 8));
  CHECK(hybrid.shard.gbyte_s == doctest::Approx(360));
  CHECK(hybrid.replicate.gbyte_s == doctest::Approx(0.885 * 50));
  CHECK(hybrid.replicate.latency_us == doctest::Approx(8.4 + 14));
  // The 8 NICs of a host carry 8 * 50 GB/s together, almost as much as the NVLinks of one GPU.
  CHECK(hybrid.world.gbyte_s == doctest::Approx(0.885 * 400));
  CHECK(hybrid.world.latency_us == doctest::Approx(8.4 + 14 * 3.4 + 14));
  CHECK_FALSE(hybrid.world.is_assumed);
  const MeshRates full = mesh_rates(topology, ranks, by_hand(1, 16));
  CHECK(full.shard.gbyte_s == doctest::Approx(hybrid.world.gbyte_s));
  CHECK(std::isinf(full.replicate.gbyte_s));
  CHECK(full.replicate.latency_us == 0);
}

TEST_CASE("mesh rates: what no source provides is assumed, and only where it is crossed") {
  const Topology topology = machines::hgx(2);
  const MeshRates rates = mesh_rates(topology, fill_hosts(topology, 0), by_hand(2, 8));
  CHECK_FALSE(rates.shard.is_assumed);
  CHECK(rates.replicate.is_assumed);
  CHECK(rates.replicate.gbyte_s == doctest::Approx(0.885 * 45));
  CHECK(rates.world.is_assumed);
}

TEST_CASE("mesh rates: an axis is as slow as its slowest group") {
  Topology topology = machines::hgx(2);
  machines::add_nic(topology, "a", 8 * 400);
  machines::add_nic(topology, "b", 8 * 100);
  // Every column joins a GPU on host a, with 50 GB/s of network bandwidth, and a GPU on host b,
  // with 12.5 GB/s.
  const MeshRates rates = mesh_rates(topology, fill_hosts(topology, 0), by_hand(2, 8));
  CHECK(rates.replicate.gbyte_s == doctest::Approx(0.885 * 12.5));
}

TEST_CASE("mesh rates: across the islands of a host, over PCIe") {
  const Topology topology = divided_host();
  const GroupRate rate = group_rate(topology, fill_hosts(topology, 0), counting(4));
  CHECK(rate.gbyte_s == doctest::Approx(0.8 * 31.508).epsilon(1e-3));
  CHECK(rate.latency_us == doctest::Approx(8.4 + 2 * 3.4 + 5.7));
  CHECK_FALSE(rate.is_assumed);
}

TEST_CASE("mesh rates: hosts of CPUs") {
  Topology two = machines::cpus(2);
  const auto ranks = fill_hosts(two, 4);
  const MeshRates unknown = mesh_rates(two, ranks, by_hand(2, 2));
  CHECK(unknown.shard.gbyte_s == doctest::Approx(8));
  CHECK(unknown.shard.is_assumed);
  CHECK(unknown.shard.latency_us == doctest::Approx(2));
  CHECK(unknown.replicate.latency_us == doctest::Approx(81));
  for (const std::string host : {"a", "b"}) machines::add_nic(two, host, 100);
  const MeshRates known = mesh_rates(two, ranks, by_hand(2, 2));
  CHECK(known.replicate.gbyte_s == doctest::Approx(0.885 * 6.25));
  CHECK_FALSE(known.replicate.is_assumed);
  CHECK(known.world.gbyte_s == doctest::Approx(0.885 * 12.5));
}

TEST_CASE("mesh rates: refusals") {
  const Topology topology = machines::hgx(1);
  const auto ranks = fill_hosts(topology, 0);
  CHECK(refusal([&] {
          group_rate(topology, ranks, {0, 8});
        }) == "rank 8 of a group does not exist: there are 8 ranks");
  CHECK(refusal([&] { mesh_rates(topology, ranks, by_hand(1, 4)); }) != "");
  CHECK(std::isinf(group_rate(topology, ranks, {3}).gbyte_s));
}

TEST_CASE("rates of the two levels of an axis over hosts") {
  Topology topology = machines::hgx(2);
  for (const std::string host : {"a", "b"}) machines::add_nic(topology, host, 400);
  const auto ranks = fill_hosts(topology, 0);
  const MeshRates full = mesh_rates(topology, ranks, by_hand(1, 16));
  CHECK(full.shard_levels.intra.gbyte_s ==
        doctest::Approx(group_rate(topology, ranks, counting(8)).gbyte_s));
  CHECK(full.shard_levels.inter.gbyte_s ==
        doctest::Approx(group_rate(topology, ranks, {3, 11}).gbyte_s));
  CHECK(full.world_levels.intra.gbyte_s == full.shard_levels.intra.gbyte_s);
  // Groups inside one host, and groups with one rank on each host, have no separate rates for two
  // levels.
  const MeshRates hybrid = mesh_rates(topology, ranks, by_hand(2, 8));
  CHECK_FALSE(hybrid.shard_levels.intra.is_known());
  CHECK_FALSE(hybrid.replicate_levels.inter.is_known());
  CHECK(hybrid.world_levels.inter.is_known());
}

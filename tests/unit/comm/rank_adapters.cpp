// Tests of the choice of the RDMA adapters of a rank.
#include "comm/placement/rank_adapters.hpp"

#include <doctest/doctest.h>

using atoll::choose_adapters;
using atoll::RankAdapters;
using atoll::RankEnvironment;
using atoll::Topology;

namespace {

using Names = std::vector<std::string>;

// Two GPUs and two adapters. Each GPU has an adapter below its own PCIe switch, and the adapters
// are on different NUMA nodes.
Topology machine() {
  Topology topology;
  topology.hosts.push_back({.id = "a", .name = "a", .numa_nodes = 2});
  for (const int i : {0, 1}) {
    const std::string bridge = i == 0 ? "pci0000:15/15:01.0" : "pci0000:37/37:01.0";
    atoll::TopologyGpu gpu;
    gpu.id = "a/gpu" + std::to_string(i);
    gpu.host = "a";
    gpu.busid = i == 0 ? "00000000:16:00.0" : "00000000:38:00.0";
    gpu.pci_path = bridge;
    topology.gpus.push_back(gpu);
    atoll::TopologyNic nic;
    nic.name = i == 0 ? "mlx5_1:2" : "mlx5_0";  // the names are in another order than the GPUs
    nic.id = "a/" + nic.name;
    nic.host = "a";
    nic.layer = "infiniband";
    nic.state = "active";
    nic.rate_gbit_s = 400;
    nic.numa = i;
    nic.pci_path = bridge;
    topology.nics.push_back(nic);
  }
  return topology;
}

}  // namespace

TEST_CASE("adapters of a rank: those of its GPU, whatever its cores are") {
  RankEnvironment rank;
  rank.numa = 0;
  const RankAdapters chosen = choose_adapters(machine(), rank, "0000:38:00.0");
  CHECK(chosen.ports == Names{"mlx5_0"});
  CHECK(chosen.why == "mlx5_0 is nearest (PIX)");
  CHECK(choose_adapters(machine(), rank, "0000:16:00.0").ports == Names{"mlx5_1:2"});
}

TEST_CASE("adapters of a rank: those of its NUMA node for CPU memory") {
  RankEnvironment rank;
  rank.numa = 1;
  CHECK(choose_adapters(machine(), rank, "").ports == Names{"mlx5_0"});
  rank.numa = 0;
  CHECK(choose_adapters(machine(), rank, "").ports == Names{"mlx5_1:2"});
  rank.numa = -1;
  const RankAdapters all = choose_adapters(machine(), rank, "");
  CHECK(all.ports == Names{"mlx5_0", "mlx5_1:2"});
  CHECK(all.why == "mlx5_0 and mlx5_1:2: the rank is not bound to the cores of one NUMA node");
}

TEST_CASE("adapters of a rank: an unknown GPU counts as CPU memory, and the reason says so") {
  RankEnvironment rank;
  rank.numa = 1;
  const RankAdapters chosen = choose_adapters(machine(), rank, "0000:99:00.0");
  CHECK(chosen.ports == Names{"mlx5_0"});
  CHECK(chosen.why ==
        "mlx5_0 is on NUMA node 1, where the rank runs (the topology has no GPU 0000:99:00.0)");
}

TEST_CASE("adapters of a rank: a machine without any") {
  const RankAdapters none = choose_adapters(Topology(), {}, "");
  CHECK(none.ports.empty());
  CHECK(none.why == "no active NIC that joins hosts");
}

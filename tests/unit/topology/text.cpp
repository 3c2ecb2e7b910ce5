#include <doctest/doctest.h>

#include "unit/topology/machines.hpp"
#include "wording.hpp"

using atoll::Topology;
using machines::contains;
using machines::gpu;

TEST_CASE("wording: hosts that share a name show their ids") {
  Topology topology;
  machines::add_host(topology, "node/1/2");
  machines::add_host(topology, "node/3/4");
  for (auto& host : topology.hosts) host.name = "node";
  CHECK(atoll::DisplayNames(topology).host("node/3/4") == "node/3/4");
  topology.hosts[0].name = "other";
  const atoll::DisplayNames names(topology);
  CHECK(names.host("node/3/4") == "node");
  CHECK(names.host("stranger") == "stranger");
  CHECK(names.device("node/1/2/gpu3") == "other/gpu3");
  CHECK(names.gpus(std::vector<std::string>{"node/1/2/gpu0", "node/1/2/gpu1", "node/3/4/gpu7"}) ==
        "other/gpu0-1, node/gpu7");
}

TEST_CASE("tree: hosts, devices by NUMA node, islands") {
  Topology topology = machines::hgx(1);
  machines::add_nic(topology, "a", 400);
  topology.hosts[0].cores = 2;
  topology.hosts[0].threads = 4;
  machines::add_host(topology, "b", 2);
  const std::string tree = to_tree(atoll::inspect(topology));
  CHECK(contains(tree, "2 hosts, 10 GPUs, 1 NIC, 2 islands\n"));
  CHECK(contains(tree,
                 "host a\n  2 packages, 2 NUMA nodes, 8 cores (16 threads), of which 2 cores (4 "
                 "threads) may be used, 1 GiB\n"));
  CHECK(contains(tree, "  NUMA node 0\n    gpu0  test  00000000:10:00.0  -> mlx5_0\n"));
  CHECK(contains(tree, "  NUMA node unknown\n    mlx5_0  infiniband  active  400 Gbit/s (test)\n"));
  CHECK(contains(tree, "  0: 8 GPUs  a/gpu0-7  NVLink  450 GB/s a GPU  450 GB/s a pair\n"));
  CHECK(contains(tree, "  1: 2 GPUs  b/gpu0-1  links unknown: no source shows them\n"));
  CHECK(contains(to_tree(atoll::inspect(machines::cpus(1))), "  0: CPUs of a\n"));
  CHECK(contains(to_tree(atoll::inspect(Topology{})), "0 hosts"));
}

TEST_CASE("tree: processors, and PCIe links that are slower than the port or its only known rate") {
  Topology topology = machines::cpus(1);
  for (const char* package : {"package.0", "package.1"})
    topology.hosts[0].facts[package] = "18 cores, L3 45 MiB";
  topology.hosts[0].facts["package.2"] = "4 cores";
  // PCIe Gen4 x16 carries 16 GT/s * 16 lanes * 128/130 = 252 Gbit/s.
  for (const char* name : {"mlx5_0", "mlx5_1", "mlx5_2"})
    machines::add_nic(topology, "a", 400, name).facts = {{"pci.gt_s", "16"}, {"pci.width", "16"}};
  topology.nics[1].rate_gbit_s = 200;
  topology.nics[2].rate_gbit_s.reset();
  std::string tree = to_tree(atoll::inspect(topology));
  CHECK(contains(tree, "\n  packages 0-1: 18 cores, L3 45 MiB each\n  package 2: 4 cores\n"));
  CHECK(contains(tree, "  400 Gbit/s (test), at most 252 Gbit/s over PCIe\n"));
  CHECK(contains(tree, "  200 Gbit/s (test)\n"));
  CHECK(contains(tree, "  mlx5_2  infiniband  active  at most 252 Gbit/s over PCIe\n"));
  topology.hosts[0].facts["virtual_machine"] = "yes";
  CHECK_FALSE(contains(to_tree(atoll::inspect(topology)), "over PCIe"));
}

TEST_CASE("tree and JSON: the NICs of ranks on CPU memory, and the reason") {
  Topology topology;
  machines::add_host(topology, "a");
  for (const int numa : {0, 1})
    machines::add_nic(topology, "a", 400, "mlx5_" + std::to_string(numa)).numa = numa;
  std::string tree = to_tree(atoll::inspect(topology));
  for (const char* part :
       {"\n  ranks on CPU memory  -> mlx5_0 and mlx5_1: the rank is not bound to",
        "\n    ranks on CPU memory  -> mlx5_0 is on NUMA node 0, where the rank runs\n",
        "\n    ranks on CPU memory  -> mlx5_1 is on NUMA node 1, where the rank runs\n"})
    CHECK_MESSAGE(contains(tree, part), tree);
  const std::string json = to_json(atoll::inspect(topology));
  CHECK(contains(json, "\"cores_affinity\": [\n"));
  CHECK(contains(json, R"({"host":"a","numa":1,"nearest":["a/mlx5_1"],"use":["a/mlx5_1"],)"
                       R"("level":"NODE","why":"mlx5_1 is on NUMA node 1, where the rank runs"})"));
  CHECK(Topology::from_json(json, "test").nics.size() == 2);
  // Without an active NIC, the tree gives the reason once, for the whole host.
  for (auto& nic : topology.nics) nic.state = "down";
  tree = to_tree(atoll::inspect(topology));
  CHECK(contains(tree, "\n  ranks on CPU memory: no active NIC that joins hosts\n"));
  CHECK(tree.find("ranks on CPU memory") == tree.rfind("ranks on CPU memory"));
}

TEST_CASE("tree: the mesh stands first, and GPU machines show no ranks on CPU memory") {
  atoll::MeshPlan plan;
  plan.order = {0};
  const std::string tree =
      to_tree(atoll::inspect(atoll::catalog_cluster("aws-p5"), {}, std::move(plan)));
  CHECK(contains(tree, "1 island\nmesh 1x1 (replicate x shard)\n"));
  CHECK(tree.find("\n\nhost aws-p5\n") > tree.find("ranks 0\n"));
  CHECK_FALSE(contains(tree, "ranks on CPU memory"));
}

TEST_CASE("tree: devices of unknown place are on the only NUMA node") {
  Topology topology = machines::cpus(1);
  topology.hosts[0].numa_nodes = 1;
  topology.hosts[0].memory_bytes = std::uint64_t{15} << 29;
  machines::add_nic(topology, "a", 400);
  const auto inspection = atoll::inspect(topology);
  const std::string tree = to_tree(inspection);
  CHECK(contains(tree, "\n  NUMA node 0\n    mlx5_0  infiniband"));
  CHECK(contains(tree, "\n  ranks on CPU memory  -> mlx5_0\n"));
  for (const char* contradiction : {"unknown", "not bound"})
    CHECK_FALSE(contains(tree, contradiction));
  // The tree and the picture round sizes alike.
  CHECK(contains(tree, ", 7.5 GiB\n"));
  CHECK(contains(to_svg(inspection), ", 7.5 GiB<"));
}

TEST_CASE("matrix: how each pair is joined") {
  Topology topology;
  machines::add_host(topology, "a", 4, atoll::IslandState::known);
  machines::link(topology, gpu("a", 0), gpu("a", 1), 4);
  machines::link(topology, gpu("a", 1), gpu("a", 2), 2);
  const std::string matrix = to_matrix(atoll::inspect(topology));
  CHECK(contains(matrix, "gpu0     X   NV4   NV*   SYS\n"));
  CHECK(contains(matrix, "gpu1   NV4     X   NV2   SYS\n"));
  CHECK(contains(matrix, "gpu2   NV*   NV2     X  NODE\n"));
  machines::add_host(topology, "b", 2);
  CHECK(contains(to_matrix(atoll::inspect(topology)), "  NET"));
  CHECK(contains(to_matrix(atoll::inspect(topology)), " SYS?"));
  const std::string switched = to_matrix(atoll::inspect(machines::hgx(2)));
  CHECK(contains(switched, "a/gpu0       X    NV18"));
  CHECK(contains(switched, "\nNVn   n NVLinks, direct or to the switches of both\n"));
  CHECK_FALSE(contains(switched, "NV*"));
  CHECK(to_matrix(atoll::inspect(machines::cpus(1))) == "no GPUs\n");
  Topology huge;
  machines::add_host(huge, "a", 2000);
  CHECK_THROWS_AS(to_matrix(atoll::inspect(huge)), atoll::Error);
}

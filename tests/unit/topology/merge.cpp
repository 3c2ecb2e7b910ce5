// Tests of merge_views(), which merges several views of one host. These tests cover devices and
// their members; merge_links.cpp covers links.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "facts.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/views.hpp"

namespace {

namespace fact = atoll::fact;
using atoll::get_fact;
using namespace machines;
using namespace views;

}  // namespace

TEST_CASE("views: one view is itself, under the new name") {
  Topology one = view("dump", 2);
  switched(one, 18);
  add_nic(one, "mlx5_0");
  one.paths.push_back({.a = "dump/gpu0", .b = "dump/mlx5_0", .level = atoll::PathLevel::pix});
  one.links.push_back({.a = "dump/gpu0", .b = "rack:switch", .type = "nvlink", .gbyte_s = 1.0});
  one.links.push_back({.a = "dump/gpu1", .b = "dump:nvswitch1", .type = "nvlink", .gbyte_s = 1.0});
  one.links.push_back({.a = "dump/gpu0", .b = "dump/cpu0", .type = "nvlink_cpu", .gbyte_s = 1.0});
  one.documents.push_back({"nccl xml", "dump.xml", {"dump"}, "<system/>"});
  one.conflicts.push_back({"dump/gpu0 - dump/mlx5_0", "x", "1 (y)", "2 (z)"});
  one.conflicts.push_back({"dump", "x", "1 (y)", "2 (z)"});
  const Topology node = atoll::merge_views("node", {one}, {"dump.xml"});
  REQUIRE(node.hosts.size() == 1);
  CHECK(node.hosts[0].name == "node");
  CHECK(node.gpus[1].id == "node/gpu1");
  CHECK(node.nics[0].id == "node/mlx5_0");
  CHECK(links_of(node) ==
        "node/gpu0 - node/nvswitch0 nvlink 18 -; node/gpu1 - node/nvswitch0 nvlink 18 -; "
        "node/gpu0 - rack:switch nvlink 1 1; node/gpu1 - node:nvswitch1 nvlink 1 1; "
        "node/gpu0 - node/cpu0 nvlink_cpu 1 1; ");
  CHECK(node.paths.at(0).b == "node/mlx5_0");
  CHECK(node.documents.at(0).hosts == std::vector<std::string>{"node"});
  CHECK(conflicts_of(node) ==
        "node/gpu0 - node/mlx5_0 x 1 (y), not 2 (z); node x 1 (y), not 2 (z); ");
}

TEST_CASE("views: what one lacks the next one has") {
  Topology a = view("a", 2), b = view("b", 2);
  without_busids(a);
  a.gpus[0].numa = -1;
  a.gpus[1].model = "";
  a.hosts[0].memory_bytes = 0;
  a.hosts[0].threads = 0;
  b.gpus[1].model = "NVIDIA H100";
  b.gpus[1].pci_path = "pci0000:00";
  b.gpus[1].partitions = {"MIG-1"};
  b.gpus[1].package = 1;
  b.gpus[1].facts.emplace("sm", "90");
  b.hosts[0].facts.emplace("driver.version", "570");
  b.hosts[0].threads = 12;
  const Topology node = merge_two(a, b);
  REQUIRE(gpus_of(node) ==
          "node/gpu0 00000000:10:00.0 index 0 numa 0 test; "
          "node/gpu1 00000000:11:00.0 index 1 numa 1 NVIDIA H100; ");
  CHECK(node.gpus[1].pci_path == "pci0000:00");
  CHECK(node.gpus[1].partitions == std::vector<std::string>{"MIG-1"});
  CHECK(node.gpus[1].package == 1);
  CHECK(get_fact(node.gpus[1].facts, fact::sm) == "90");
  CHECK(get_fact(node.hosts[0].facts, fact::driver_version) == "570");
  CHECK(node.hosts[0].memory_bytes == 1ULL << 30);
  CHECK(node.hosts[0].threads == 12);
  CHECK(node.conflicts.empty());
}

TEST_CASE("views: the first that has a value is believed, and another value is a conflict") {
  Topology a = view("a", 1), b = view("b", 1), c = view("c", 1);
  a.gpus[0].numa = -1;
  b.gpus[0].numa = 1;
  c.gpus[0].numa = 0;
  c.gpus[0].facts.emplace("sm", "90");
  a.gpus[0].facts.emplace("sm", "80");
  const Topology node = merged({a, b, c});
  CHECK(node.gpus[0].numa == 1);
  CHECK(conflicts_of(node) ==
        "node/gpu0 numa 1 (b.txt), not 0 (c.json); node/gpu0 sm 80 (a.xml), not 90 (c.json); ");
}

TEST_CASE("views: readings that change by themselves contradict nothing") {
  Topology a = view("a", 1), b = view("b", 1);
  add_nic(a, "mlx5_0").facts.emplace("link.errors", "none");
  add_nic(b, "mlx5_0").facts.emplace("link.errors", "symbol_error 1");
  for (const auto name : {fact::pci_gt_s, fact::pci_gbyte_s, fact::pci_replays, fact::throttle,
                          fact::nvlink_errors}) {
    a.gpus[0].facts.emplace(name, "1");
    b.gpus[0].facts.emplace(name, "2");
  }
  for (const auto name : {fact::hwloc_version, fact::host_hash, fact::memlock_bytes,
                          std::string_view("source.nvml")}) {
    a.hosts[0].facts.emplace(name, "1");
    b.hosts[0].facts.emplace(name, "2");
  }
  a.hosts[0].facts.emplace("note.nccl xml", "one");
  b.hosts[0].facts.emplace("note.nccl xml", "two");
  const Topology node = merge_two(a, b);
  CHECK(node.conflicts.empty());
  CHECK(get_fact(node.gpus[0].facts, fact::pci_gt_s) == "1");
  CHECK(get_fact(node.hosts[0].facts, "note.nccl xml") == "one; two");
  CHECK(get_fact(merge_two(a, a).hosts[0].facts, "note.nccl xml") == "one");
}

TEST_CASE("views: values that mean the same") {
  const auto conflicts = [](std::string_view name, const std::string& x, const std::string& y) {
    Topology a = view("a", 1), b = view("b", 1);
    a.gpus[0].facts.emplace(name, x);
    b.gpus[0].facts.emplace(name, y);
    return merge_two(a, b).conflicts.size();
  };
  CHECK(conflicts(fact::power_limit_w, "700", "700.00") == 0);
  CHECK(conflicts(fact::power_limit_w, "700", "650") == 1);
  CHECK(conflicts(fact::memory_bytes, "85899345920", "85520809984") == 0);
  CHECK(conflicts(fact::memory_bytes, "85899345920", "42949672960") == 1);
  CHECK(conflicts(fact::pci_device, "10DE:2330", "10de:2330") == 0);
  CHECK(conflicts(fact::node_guid, "506b:4b03:00cb:b4e2", "0x506b4b0300cbb4e2") == 0);
  CHECK(conflicts(fact::pci_width, "16", "8") == 1);
}

TEST_CASE("views: names of models") {
  const auto conflicts = [](const std::string& x, const std::string& y) {
    Topology a = view("a", 1), b = view("b", 1);
    a.gpus[0].model = x;
    b.gpus[0].model = y;
    const Topology node = merge_two(a, b);
    CHECK(node.gpus[0].model == x);
    return node.conflicts.size();
  };
  CHECK(conflicts("NVIDIA H100 80GB HBM3", "H100") == 0);
  CHECK(conflicts("H100", "NVIDIA H100 80GB HBM3") == 0);
  CHECK(conflicts("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM") == 0);
  CHECK(conflicts("Tesla V100-SXM2-32GB", "NVIDIA V100 SXM2 32GB") == 0);
  CHECK(conflicts("NVIDIA H100 SXM", "NVIDIA H100 PCIe") == 1);
  CHECK(conflicts("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB") == 1);
  CHECK(conflicts("NVIDIA A100-SXM4-40GB", "NVIDIA L40S") == 1);
}

TEST_CASE("views: GPUs are matched by bus id, though their numbers differ") {
  Topology a = view("a", 2), b = view("b", 2);
  std::swap(b.gpus[0].busid, b.gpus[1].busid);
  b.gpus[0].model = "H100";  // `b` gives this GPU index 0, but `a` gives its bus id index 1
  const Topology node = merge_two(a, b);
  CHECK(node.gpus.at(1).index == 1);
  CHECK(dispute(node, "node/gpu1", "index").ends_with("0 (b.txt)"));
  CHECK(dispute(node, "node/gpu1", "model").starts_with("test (a.xml)"));
}

TEST_CASE("views: UUIDs match GPUs where they are unique") {
  Topology a = view("a", 2), b = view("b", 2);
  without_busids(without_numbers(b));
  a.gpus[0].uuid = b.gpus[1].uuid = "GPU-11111111-0000-0000-0000-000000000000";
  a.gpus[1].uuid = b.gpus[0].uuid = "GPU-22222222-0000-0000-0000-000000000000";
  b.gpus[0].model = "second";
  const Topology node = merge_two(a, b);
  REQUIRE(node.gpus.size() == 2);
  CHECK(dispute(node, "node/gpu1", "model").ends_with("second (b.txt)"));
  for (Topology* scrubbed : {&a, &b})  // as scrubbed files have one UUID for all GPUs
    for (auto& one : scrubbed->gpus) one.uuid = "GPU-11111111-0000-0000-0000-000000000000";
  CHECK(contains(error_of({a, b}), "cannot be matched"));
  a.gpus.pop_back();
  b.gpus.pop_back();
  a.gpus[0].uuid = b.gpus[0].uuid = "GPU-00000000-0000-0000-0000-000000000000";
  CHECK(contains(error_of({a, b}), "cannot be matched"));
}

TEST_CASE("views: NVML's numbers go by bus id") {
  Topology a = view("a", 3), b = view("b", 3);
  without_numbers(a);
  without_busids(b);
  // `a` lists its GPUs with the bus ids 12, 11 and 10, in this order.
  std::swap(a.gpus[0], a.gpus[2]);
  b.gpus[0].package = 7;
  for (const auto& node : {merge_two(a, b), merge_two(b, a)}) {
    REQUIRE(node.gpus.size() == 3);
    const auto found = std::ranges::find(node.gpus, 7, &atoll::TopologyGpu::package);
    REQUIRE(found != node.gpus.end());
    CHECK(found->busid == "00000000:10:00.0");
    CHECK(found->index == 0);
  }
}

TEST_CASE("views: GPUs that cannot be matched are refused") {
  Topology a = view("a", 4), b = view("b", 3);
  without_numbers(a);
  without_busids(b);
  CHECK(error_of({a, b}) ==
        "b.txt: the GPUs cannot be matched with the GPUs of a.xml: neither bus ids nor UUIDs nor "
        "indices identify them");
  Topology other = view("other", 2);  // nor are those of another host added
  for (auto& one : other.gpus) one.busid.replace(9, 1, "f");
  CHECK(contains(error_of({view("a", 2), other}), "cannot be matched"));
}

TEST_CASE("views: GPUs that a container hides from the first view are added") {
  Topology a = view("a", 2), b = view("b", 4);
  // `a` sees only GPUs 2 and 3 of the host, and numbers them 0 and 1.
  a.gpus[0].busid = "00000000:12:00.0";
  a.gpus[1].busid = "00000000:13:00.0";
  const Topology node = merge_two(a, b);
  CHECK(gpus_of(node) ==
        "node/gpu0 00000000:12:00.0 index 0 numa 0 test; "
        "node/gpu1 00000000:13:00.0 index 1 numa 1 test; "
        "node/gpu2 00000000:10:00.0 index -1 numa 0 test; "
        "node/gpu3 00000000:11:00.0 index -1 numa 0 test; ");
  CHECK(dispute(node, "node", "gpus") == "2 GPUs (a.xml), not 4 GPUs (b.txt)");
  // A view without GPUs contradicts no other view.
  CHECK(conflict(merge_two(view("a", 0), b), "node", "gpus") == nullptr);
  CHECK(merge_two(view("a", 0), b).gpus.size() == 4);
}

TEST_CASE("views: NICs are matched by name, else by bus id") {
  Topology a = view("a", 0), b = view("b", 0);
  add_nic(a, "mlx5_0");
  add_nic(a, "mlx5_1", "00000000:21:00.0").layer = "infiniband";
  add_nic(a, "eth0");
  add_nic(b, "mlx5_0", "00000000:20:00.0").state = "active";
  add_nic(b, "mlx5_1", "00000000:21:00.0").state = "down";
  add_nic(b, "mlx5_9", "00000000:29:00.0");
  const Topology node = merge_two(a, b);
  CHECK(topology_test::nics_of(node) ==
        "node/mlx5_0 00000000:20:00.0 - active -\n"
        "node/mlx5_1 00000000:21:00.0 infiniband down -\n"
        "node/eth0 - - - -\nnode/mlx5_9 00000000:29:00.0 - - -\n");
  CHECK(node.conflicts.empty());
}

TEST_CASE("views: NICs that a container renamed are matched by bus id") {
  Topology a = view("a", 0), b = view("b", 0);
  add_nic(a, "mlx5_0", "00000000:20:00.0").rate_gbit_s = 400;
  add_nic(b, "mlx5_0", "00000000:21:00.0").rate_gbit_s = 200;
  add_nic(b, "mlx5_1", "00000000:20:00.0").rate_gbit_s = 400;
  const Topology node = merge_two(a, b);
  CHECK(topology_test::nics_of(node) ==
        "node/mlx5_0 00000000:20:00.0 - - 400\nnode/mlx5_0@1 00000000:21:00.0 - - 200\n");
  CHECK(dispute(node, "node/mlx5_0", "name").ends_with("mlx5_1 (b.txt)"));
}

TEST_CASE("views: the ports of one adapter stay apart, though they share a bus id") {
  Topology a = view("a", 0), b = view("b", 0);
  for (Topology* one : {&a, &b}) {
    add_nic(*one, "mlx4_0", "00000000:20:00.0");
    add_nic(*one, "mlx4_0:2", "00000000:20:00.0");
  }
  a.nics[1].state = "down";
  b.nics[1].rate_gbit_s = 56;
  const Topology node = merge_two(a, b);
  CHECK(topology_test::nics_of(node).ends_with("\nnode/mlx4_0:2 00000000:20:00.0 - down 56\n"));
  CHECK(node.conflicts.empty());
}

TEST_CASE("views: NICs without names stay apart, and that is said") {
  Topology a = view("a", 0), b = view("b", 0);
  add_nic(a, "mlx5_0");
  add_nic(b, "NIC0");
  add_nic(b, "NIC1");
  const Topology node = merge_two(a, b);
  CHECK(node.nics.size() == 3);
  CHECK(dispute(node, "node", "nics") ==
        "mlx5_0 (a.xml), not NIC0 and NIC1 without their names (b.txt)");
}

TEST_CASE("views: members of NICs") {
  Topology a = view("a", 0), b = view("b", 0);
  auto& one = add_nic(a, "mlx5_0");
  auto& other = add_nic(b, "mlx5_0");
  other.rate_gbit_s = 180;
  other.evidence = "nccl xml";
  one.adapter = "506b:4b03:00cb:b4e2";
  // The GUID 506b:4b03:00cb:b4e2 in the byte order that NCCL prints.
  other.adapter = "0xe2b4cb00034b6b50";
  one.state = "active";
  other.state = "down";
  one.layer = "infiniband";
  other.layer = "ethernet";
  other.is_virtual = true;
  Topology node = merge_two(a, b);
  CHECK(node.nics[0].rate_gbit_s == 180);
  CHECK(node.nics[0].evidence == "nccl xml");
  CHECK(node.nics[0].adapter == one.adapter);
  CHECK(node.nics[0].is_virtual);
  CHECK(conflict(node, "node/mlx5_0", "adapter") == nullptr);
  CHECK(dispute(node, "node/mlx5_0", "state").ends_with("down (b.txt)"));
  CHECK(conflict(node, "node/mlx5_0", "layer"));
  one.rate_gbit_s = 200;
  one.evidence = "sysfs";
  node = merge_two(a, b);
  CHECK(node.nics[0].evidence == "sysfs");
  CHECK(dispute(node, "node/mlx5_0", "rate_gbit_s").starts_with("200 (a.xml)"));
}

TEST_CASE("views: a host's parts that a view hides are not denied") {
  Topology a = view("a", 0), b = view("b", 0);
  a.hosts[0].numa_nodes = 1;
  a.hosts[0].host_threads = 8;
  a.hosts[0].cores = 4;
  b.hosts[0].numa_nodes = 8;
  b.hosts[0].memory_bytes = 1ULL << 31;
  const Topology node = merge_two(a, b);
  CHECK(node.hosts[0].numa_nodes == 8);
  CHECK(node.hosts[0].host_threads == 16);
  CHECK(node.hosts[0].cores == 4);
  CHECK(conflicts_of(node).starts_with("node memory_bytes "));
}

TEST_CASE("views: each describes one host") {
  Topology two = view("a", 1);
  add_host(two, "b");
  CHECK(error_of({view("a", 1), two}) ==
        "b.txt: the file describes 2 hosts, but a view of node must describe one host");
  CHECK(error_of({Topology(), view("a", 1)}).starts_with("a.xml: the file describes 0 hosts"));
  CHECK_THROWS_AS(atoll::merge_views("node", {}, {}), atoll::Error);
  CHECK_THROWS_AS(atoll::merge_views("node", {view("a", 1)}, {}), atoll::Error);
}

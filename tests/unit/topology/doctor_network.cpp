// Tests of the topology doctor's checks of NIC ports and of the paths between GPUs and NICs.
#include "unit/topology/doctor.hpp"

namespace fact = atoll::fact;
using atoll::diagnose;
using namespace machines;

TEST_CASE("port_down: an error where it is a GPU's nearest NIC") {
  Topology topology = cluster(1);
  CHECK(state_of(topology, "port_down") == "ok");
  topology.nics[2].state = "down";
  topology.nics[2].rate_gbit_s.reset();
  expect_finding(topology, "port_down", Severity::error, {"a/mlx5_2"},
                 {"the port is down", "this is the nearest NIC of 1 GPU", "ibstat mlx5_2 1"});
  set(topology.nics[2].facts, fact::phys_state, "polling");
  CHECK(the_finding(topology, "port_down").evidence ==
        "the port is down (polling: no device answers)");
  for (auto& nic : topology.nics) nic.state = "";
  CHECK(state_of(topology, "port_down") == "no source provides link.state");
}

TEST_CASE("port_down: the title holds where virtual interfaces are down") {
  Topology topology = cluster(1);
  machines::add_port(topology, "a", 9).is_virtual = true;
  topology.nics.back().state = "down";
  const Check check = check_of(atoll::diagnose(topology), "port_down");
  CHECK(check.status == CheckStatus::ok);
  CHECK(check.title == "All physical ports are up");
}

TEST_CASE("port_down: a warning where another port is as near, information for sockets") {
  Topology topology = cluster(1);
  machines::add_port(topology, "a", 2).state = "down";
  machines::rename(topology.nics.back(), "mlx5_2:2");
  expect_finding(topology, "port_down", Severity::warning, {}, {"ibstat mlx5_2 2"});
  topology.nics.back().name = "p1p1";
  topology.nics.back().layer = "ethernet";
  set(topology.nics.back().facts, fact::netdev, "p1p1");
  CHECK(the_finding(topology, "port_down").severity == Severity::info);
  topology.nics.back().is_virtual = true;
  CHECK(state_of(topology, "port_down") == "ok");
}

TEST_CASE("port_initialising: no subnet manager") {
  Topology topology = cluster(1);
  CHECK(state_of(topology, "port_initialising") == "ok");
  topology.nics[0].state = "init";
  topology.nics[1].state = "armed";
  set(topology.nics[0].facts, fact::sm_lid, "0");
  const auto findings = found_in(diagnose(topology), "port_initialising");
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].severity == Severity::error);
  CHECK(findings[0].evidence == "the port is init (no subnet manager has configured it)");
  CHECK(findings[1].evidence == "the port is armed");
  CHECK(contains(findings[0].fix, "opensm"));
  topology.nics.clear();
  CHECK(state_of(topology, "port_initialising") == "no NICs");
}

TEST_CASE("port_slow: slower or narrower than its peers") {
  Topology topology = cluster(4);
  CHECK(state_of(topology, "port_slow") == "ok");
  topology.nics[5].rate_gbit_s = 200;
  expect_finding(topology, "port_slow", Severity::warning, {"b/mlx5_1"},
                 {"the port runs at 200 Gbit/s, 3 peers have 400", "carries 25 of 50 GB/s"});
  topology.nics[5].rate_gbit_s = 400;
  set_nics(topology, fact::width, "4");
  set(topology.nics[0].facts, fact::width, "2");
  expect_finding(
      topology, "port_slow", std::nullopt, {},
      {"the port has 2 lanes, 3 peers have 4", "the port has 50 % of its peers' bandwidth"});
}

TEST_CASE("port_slow: a port that no GPU uses is information, and holds up no rails") {
  Topology topology = cluster(1, 4);
  topology.nics[3].rate_gbit_s = 200;
  CHECK(the_finding(topology, "port_slow").severity == Severity::warning);
  topology.gpus.pop_back();
  expect_finding(topology, "port_slow", Severity::info, {"a/mlx5_3"},
                 {"the port carries 25 of 50 GB/s, and no GPU sends through this port"});
}

TEST_CASE("port_slow: ports for storage are no peers of the fast ones") {
  Topology topology = cluster(2);
  for (const char* host : {"a", "b"}) machines::add_port(topology, host, 9, "infiniband", 100);
  CHECK(state_of(topology, "port_slow") == "ok");
  Topology one = cluster(1, 1);
  CHECK(state_of(one, "port_slow") == "no two ports of one type with known rates");
  // Equal PCI device ids make two ports peers, whatever their names are.
  one = cluster(1);
  set_nics(one, fact::pci_device, "15b3:1021");
  machines::add_port(one, "a", 9, "infiniband", 100);
  set(one.nics.back().facts, fact::pci_device, "15b3:101b");
  CHECK(state_of(one, "port_slow") == "ok");
  set(one.nics.back().facts, fact::pci_device, "15b3:1021");
  CHECK(the_finding(one, "port_slow").subjects == Strings{"a/mlx5_9"});
}

TEST_CASE("link_errors: the counters, of the first few ports") {
  Topology topology = cluster(1, 8);
  CHECK(state_of(topology, "link_errors") == "no source provides link.errors");
  set_nics(topology, fact::errors, "none");
  CHECK(state_of(topology, "link_errors") == "ok");
  set(topology.nics[0].facts, fact::errors, "symbol_error 12, link_downed 3");
  expect_finding(topology, "link_errors", Severity::warning, {"a/mlx5_0"},
                 {"a/mlx5_0: symbol_error 12, link_downed 3"});
  set_nics(topology, fact::errors, "symbol_error 1");
  const Finding finding = the_finding(topology, "link_errors");
  CHECK(finding.subjects.size() == 8);
  CHECK(contains(finding.evidence, "a/mlx5_2: symbol_error 1; and 5 more"));
}

TEST_CASE("mtu_differs: the odd ones out") {
  Topology topology = cluster(3, 1);
  CHECK(state_of(topology, "mtu_differs") == "no two ports of one type with known MTU");
  set_nics(topology, fact::mtu, "4096");
  CHECK(state_of(topology, "mtu_differs") == "ok");
  set(topology.nics[1].facts, fact::mtu, "2048");
  expect_finding(topology, "mtu_differs", Severity::warning, {"b/mlx5_0"},
                 {"the MTU is 2048, 2 peers have 4096"});
}

TEST_CASE("firmware_differs: among like NICs only") {
  Topology topology = cluster(3, 1);
  CHECK(state_of(topology, "firmware_differs") == "no source provides firmware");
  set_nics(topology, fact::firmware, "28.39.1002");
  CHECK(state_of(topology, "firmware_differs") == "ok");
  set(topology.nics[2].facts, fact::firmware, "28.36.1010");
  expect_finding(topology, "firmware_differs", Severity::info, {"c/mlx5_0"},
                 {"the NIC has firmware 28.36.1010"});
  // This is the firmware of another type of adapter, so the versions may differ.
  set(topology.nics[2].facts, fact::firmware, "20.36.1010");
  CHECK(state_of(topology, "firmware_differs") == "ok");
}

TEST_CASE("roce_gid: no routable address, or another one chosen") {
  Topology topology = cluster(1);
  CHECK(state_of(topology, "roce_gid") == "no active RoCE ports");
  for (auto& nic : topology.nics) nic.layer = "ethernet";
  CHECK(state_of(topology, "roce_gid") == "no source provides gid.roce_v2");
  set_nics(topology, fact::gid_roce_v2, "3");
  CHECK(state_of(topology, "roce_gid") == "ok");
  set_hosts(topology, "env.NCCL_IB_GID_INDEX", "-1");
  CHECK(state_of(topology, "roce_gid") == "ok");
  set_hosts(topology, "env.NCCL_IB_GID_INDEX", "1");
  Finding finding = the_finding(topology, "roce_gid");
  CHECK(finding.severity == Severity::warning);
  CHECK(finding.subjects.size() == 4);
  CHECK(finding.evidence ==
        "NCCL_IB_GID_INDEX is 1 (environment), but the routable RoCE v2 address has index 3");
  set_hosts(topology, "env.NCCL_IB_GID_INDEX", "3");
  set(topology.nics[0].facts, fact::gid_roce_v2, "none");
  expect_finding(topology, "roce_gid", std::nullopt, {"a/mlx5_0"}, {"show_gids mlx5_0"});
}

TEST_CASE("gpudirect: neither module nor dma-buf") {
  Topology topology = cluster(1);
  CHECK(state_of(topology, "gpudirect") == "no source provides peermem");
  set_hosts(topology, fact::peermem, "no");
  CHECK(state_of(topology, "gpudirect") == "no source provides dma_buf");
  set_hosts(topology, fact::dma_buf, "yes");
  CHECK(state_of(topology, "gpudirect") == "ok");
  set_hosts(topology, fact::dma_buf, "no");
  expect_finding(topology, "gpudirect", Severity::error, {"a"}, {"modprobe nvidia_peermem"});
  topology.nics.clear();
  CHECK(state_of(topology, "gpudirect") == "no host with GPUs and RDMA NICs");
}

TEST_CASE("gpudirect: switched off in NCCL, or absent in its file") {
  Topology topology = cluster(1);
  set_hosts(topology, fact::peermem, "yes");
  set_hosts(topology, "env.NCCL_NET_GDR_LEVEL", "PHB");
  CHECK(state_of(topology, "gpudirect") == "ok");
  set_hosts(topology, "env.NCCL_NET_GDR_LEVEL", "LOC");
  CHECK(the_finding(topology, "gpudirect").evidence ==
        "NCCL_NET_GDR_LEVEL is LOC (environment), which turns GPUDirect off");
  topology.hosts[0].facts.clear();
  set_nics(topology, fact::gdr, "yes");
  CHECK(state_of(topology, "gpudirect") == "ok");
  set_nics(topology, fact::gdr, "no");
  CHECK(the_finding(topology, "gpudirect").subjects.size() == 4);
}

namespace {

// Returns a host with a single NIC, on the CPU socket of GPUs 0 and 1.
Topology lopsided() {
  Topology topology = cluster(1);
  topology.nics.resize(1);
  topology.nics[0].package = 0;
  topology.nics[0].numa = 0;
  return topology;
}

}  // namespace

TEST_CASE("nic_far: the nearest usable NIC on another socket") {
  const Topology topology = lopsided();
  expect_finding(topology, "nic_far", Severity::warning, {"a/gpu2", "a/gpu3"}, {"mlx5_0"});
  Topology near = cluster(1);
  for (std::size_t i = 0; i < 4; ++i) near.nics[i].package = near.gpus[i].package;
  CHECK(state_of(near, "nic_far") == "ok");
  near.nics.clear();
  CHECK(state_of(near, "nic_far") == "no NIC that a GPU could use");
}

TEST_CASE("nic_far: a stated distance counts where no source shows the sockets") {
  Topology topology = lopsided();
  topology.hosts[0].packages = 0;
  topology.nics[0].package = -1;
  for (auto& gpu : topology.gpus) gpu.package = gpu.numa = -1;
  CHECK(state_of(topology, "nic_far") == "no source shows the sockets of GPUs and NICs");
  for (int i = 0; i < 4; ++i)
    topology.paths.push_back({.a = machines::gpu("a", i),
                              .b = "a/mlx5_0",
                              .level = i == 1 ? atoll::PathLevel::phb : atoll::PathLevel::sys});
  expect_finding(topology, "nic_far", std::nullopt, {"a/gpu0", "a/gpu2", "a/gpu3"},
                 {"mlx5_0, is on another socket or NUMA node (SYS)"});
  topology.hosts[0].packages = 1;
  CHECK(state_of(topology, "nic_far") == "ok");
}

TEST_CASE("nic_shared: GPUs on one NIC, with the share of each") {
  expect_finding(lopsided(), "nic_shared", Severity::info,
                 {"a/mlx5_0", "a/gpu0", "a/gpu1", "a/gpu2", "a/gpu3"},
                 {"4 GPUs (gpu0, gpu1, gpu2 and gpu3) share one NIC (mlx5_0)",
                  "each GPU gets 12.5 of 50 GB/s when all of them send at once"});
  CHECK(state_of(cluster(1), "nic_shared") == "ok");
  Topology without = cluster(1);
  without.nics.clear();
  CHECK(state_of(without, "nic_shared") == "no NIC that a GPU could use");
}

TEST_CASE("nic_shared: ports of one adapter") {
  Topology topology = cluster(1);
  topology.nics[0].adapter = topology.nics[1].adapter = "0x1234";
  expect_finding(topology, "nic_shared", std::nullopt, {"a/mlx5_0", "a/mlx5_1", "a/gpu0", "a/gpu1"},
                 {"2 GPUs (gpu0 and gpu1) share 2 ports of one adapter (mlx5_0 and"});
}

TEST_CASE("rails_assumed: until a file names the leaves") {
  CHECK(state_of(cluster(1), "rails_assumed") == "only one host: rails connect several hosts");
  Topology topology = cluster(3);
  expect_finding(topology, "rails_assumed", Severity::info, {},
                 {"the leaf switches of 12 of 12 NICs are unknown", "--fabric"});
  for (auto& nic : topology.nics) set(nic.facts, fact::leaf, "leaf " + nic.name);
  CHECK(state_of(topology, "rails_assumed") == "ok");
  topology.nics.clear();
  CHECK(state_of(topology, "rails_assumed") == "no NIC that a GPU could use");
}

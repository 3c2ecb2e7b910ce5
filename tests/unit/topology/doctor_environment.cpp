// Tests of the topology doctor's checks of virtual machines, containers, limits, versions, and NCCL
// settings.
#include "unit/topology/doctor.hpp"

namespace fact = atoll::fact;
using atoll::diagnose;
using namespace machines;

namespace {

Topology flat_vm() {
  Topology topology = cluster(1);
  set_hosts(topology, fact::virtual_machine, "yes");
  hide_places(topology);
  return topology;
}

// Returns a machine with an examined environment. The environment has one NCCL setting, or none if
// `name` is empty.
Topology with_setting(const std::string& name, const std::string& value, int gpus = 4) {
  Topology topology = cluster(1, gpus);
  set_hosts(topology, fact::container, "no");
  if (!name.empty()) set_hosts(topology, "env." + name, value);
  return topology;
}

}  // namespace

TEST_CASE("vm_flattened: without a topology file") {
  CHECK(state_of(cluster(1), "vm_flattened") == "no source provides virtual_machine");
  Topology topology = flat_vm();
  expect_finding(topology, "vm_flattened", Severity::warning, {"a"}, {"set NCCL_TOPO_FILE"});
  set_hosts(topology, "nccl.conf.NCCL_TOPO_FILE", "/opt/topo.xml");
  CHECK(state_of(topology, "vm_flattened") == "ok");
  topology = flat_vm();  // all NICs are behind the host bridge
  for (auto& gpu : topology.gpus) gpu.numa = 0;
  for (const auto& gpu : topology.gpus)
    for (const auto& nic : topology.nics)
      topology.paths.push_back({.a = gpu.id, .b = nic.id, .level = atoll::PathLevel::phb});
  CHECK(the_finding(topology, "vm_flattened").subjects == Strings{"a"});
  topology.paths[0].level = atoll::PathLevel::pix;
  CHECK(state_of(topology, "vm_flattened") == "ok");
  Topology shaped = cluster(1);  // a virtual machine that shows the PCI paths of its devices
  set_hosts(shaped, fact::virtual_machine, "yes");
  CHECK(state_of(shaped, "vm_flattened") == "ok");
}

TEST_CASE("shm_left: the command removes what dead jobs have left") {
  Topology topology = ok_with(set_hosts, "shm_left", fact::shm_left, "none");
  set_hosts(topology, fact::shm_left, "atoll-00ff nccl-x1y2");
  expect_finding(topology, "shm_left", Severity::warning, {"a"},
                 {"2 files of dead jobs", "rm /dev/shm/atoll-00ff /dev/shm/nccl-x1y2;"});
  // A name from a file of another host may hold a command.
  set_hosts(topology, fact::shm_left, "atoll-$(reboot)");
  CHECK(state_of(topology, "shm_left") == "ok");
}

TEST_CASE("hidden: what a container takes away") {
  Topology topology = ok_with(set_hosts, "hidden", fact::container, "yes");
  set_hosts(topology, fact::hidden, "/sys /dev/infiniband");
  expect_finding(topology, "hidden", Severity::warning, {},
                 {"a container hides /sys, /dev/infiniband",
                  "start the container with --device /dev/infiniband -v /sys:/sys:ro"});
  // Without a container, the cause may be a driver that is not loaded, so the fix names no
  // container.
  set_hosts(topology, fact::container, "no");
  const Finding bare = the_finding(topology, "hidden");
  CHECK(bare.evidence == "this process does not see /sys, /dev/infiniband");
  CHECK_FALSE(contains(bare.fix, "container"));
}

TEST_CASE("gpus_hidden: GPUs of the bus that this process may not use") {
  Topology topology = cluster(1);
  CHECK(state_of(topology, "gpus_hidden") == "no source provides gpus.hidden");
  set_hosts(topology, "source.nvml", "libnvidia-ml.so.1 cannot be opened");
  CHECK(contains(state_of(topology, "gpus_hidden"), "no NVML: libnvidia-ml.so.1"));
  topology = with_setting("", "");
  set_hosts(topology, fact::driver_version, "550.54");
  CHECK(state_of(topology, "gpus_hidden") == "ok");
  set_hosts(topology, fact::hidden_gpus, "00000000:1b:00.0 00000000:2c:00.0");
  expect_finding(topology, "gpus_hidden", Severity::info, {"a"},
                 {"the PCI bus has 2 GPUs that the driver does not show",
                  "this process cannot use these GPUs", "cgroup"});
  CHECK(state_of(machines::cpus(1), "gpus_hidden") == "no GPUs");
}

TEST_CASE("hwloc_version: versions that misread NVLink, where that concerns the GPUs") {
  Topology topology = ok_with(set_hosts, "hwloc_version", fact::hwloc_version, "2.12.0");
  set_hosts(topology, fact::hwloc_version, "2.9.0");
  expect_finding(topology, "hwloc_version", Severity::info, {},
                 {"hwloc 2.9.0 reports twice the bandwidth of NVLink generation 4"});
  set_hosts(topology, fact::hwloc_version, "2.10.0");
  CHECK(the_finding(topology, "hwloc_version").severity == Severity::info);
  topology.hosts[0].gpu_links = atoll::IslandState::unknown;
  expect_finding(topology, "hwloc_version", Severity::warning, {}, {"hwloc 2.10.0 does not show"});
  for (auto& gpu : topology.gpus) gpu.model = "Tesla V100-SXM2-16GB";
  CHECK(state_of(topology, "hwloc_version") == "ok");
  topology.gpus.clear();
  CHECK(contains(state_of(topology, "hwloc_version"), "no GPUs"));
}

TEST_CASE("nccl_ib_hca: nobody looked, not set, or right") {
  CHECK(state_of(cluster(1), "nccl_ib_hca") == "no source provides env.NCCL_IB_HCA");
  CHECK(state_of(with_setting("", ""), "nccl_ib_hca") == "ok");
  for (const char* list : {"mlx5", "=mlx5_0:1,mlx5_1:1,mlx5_2,mlx5_3",
                           "mlx5_0,mlx5_1,mlx5_2,mlx5_3", "=mlx5_0::0:0,mlx5_1,mlx5_2,mlx5_3"})
    CHECK_MESSAGE(state_of(with_setting("NCCL_IB_HCA", list), "nccl_ib_hca") == "ok", list);
  Topology none = with_setting("NCCL_IB_HCA", "");
  none.nics.clear();
  none.hosts[0].facts.clear();
  CHECK(state_of(none, "nccl_ib_hca") == "no RDMA NICs");
}

TEST_CASE("nccl_ib_hca: names and ports that are not there, and nothing left") {
  const auto findings =
      found_in(diagnose(with_setting("NCCL_IB_HCA", "=mlx5_0,mlx5_1,mlx5_2:2,mlx5_3,mlx5_9")),
               "nccl_ib_hca");
  REQUIRE(findings.size() == 3);
  CHECK(contains(findings[0].evidence, "names mlx5_2:2, which this host does not have"));
  CHECK(contains(findings[1].evidence, "names mlx5_9, which"));
  CHECK(findings[0].severity == Severity::warning);
  CHECK(findings[0].subjects == Strings{"a"});
  CHECK(contains(findings[2].evidence, "selects 3 of the 4 NICs"));
  CHECK(findings[2].consequence == "NCCL can use 150 of 200 GB/s");
  for (const char* list : {"^mlx5", "=mlx5", "^", "mlx5_7"}) {
    const auto nothing = found_in(diagnose(with_setting("NCCL_IB_HCA", list)), "nccl_ib_hca");
    REQUIRE_MESSAGE(!nothing.empty(), list);
    CHECK(nothing[0].severity == Severity::error);
    CHECK(contains(nothing[0].evidence, "leaves NCCL no active port"));
  }
}

TEST_CASE("nccl_ib_hca: a prefix that means more than one NIC, or cuts a number") {
  Topology topology = with_setting("NCCL_IB_HCA", "mlx5_1", 2);
  topology.nics[0].name = "mlx5_10";
  expect_finding(topology, "nccl_ib_hca", std::nullopt, {},
                 {"NCCL_IB_HCA=mlx5_1 (environment): as a prefix, mlx5_1 also matches mlx5_10"});
  topology.nics[1].name = "mlx5_11";
  expect_finding(topology, "nccl_ib_hca", Severity::warning, {},
                 {"NCCL_IB_HCA=mlx5_1 (environment): no adapter is called mlx5_1"});
  // The prefix "mlx5" of "mlx5_10" is no mistake, because it does not end within the number.
  for (const char* fine : {"mlx5", "=mlx5_10,mlx5_11"}) {
    set_hosts(topology, "env.NCCL_IB_HCA", fine);
    CHECK(state_of(topology, "nccl_ib_hca") == "ok");
  }
}

TEST_CASE("nccl_ib_hca: active ports that no GPU uses, if the list is given") {
  Topology topology = with_setting("NCCL_IB_HCA", "mlx5", 2);
  for (const int number : {2, 20})
    machines::rename(machines::add_port(topology, "a", number % 9),
                     "mlx5_" + std::to_string(number));
  expect_finding(topology, "nccl_ib_hca", Severity::warning, {},
                 {"the setting NCCL_IB_HCA=mlx5 (environment) selects mlx5_2 and"});
  topology.nics[3].state = "down";
  expect_finding(topology, "nccl_ib_hca", std::nullopt, {}, {"selects mlx5_2, which"});
  set_hosts(topology, "env.NCCL_IB_HCA", "=mlx5_0,mlx5_1");
  CHECK(state_of(topology, "nccl_ib_hca") == "ok");
}

TEST_CASE("nccl_ib_hca: InfiniBand and RoCE together; nccl.conf counts, the environment wins") {
  Topology topology = with_setting("", "");
  machines::add_port(topology, "a", 9, "ethernet", 100);
  set_hosts(topology, "nccl.conf.NCCL_IB_HCA", "mlx5");
  expect_finding(topology, "nccl_ib_hca", Severity::warning, {},
                 {"the setting NCCL_IB_HCA=mlx5 (nccl.conf) selects ports of several"});
  set_hosts(topology, "env.NCCL_IB_HCA", "^=mlx5_9");
  CHECK(state_of(topology, "nccl_ib_hca") == "ok");
}

TEST_CASE("nccl_ib_disabled: with RDMA ports there") {
  CHECK(state_of(cluster(1), "nccl_ib_disabled") == "no source provides env.NCCL_IB_DISABLE");
  CHECK(state_of(with_setting("NCCL_IB_DISABLE", "0"), "nccl_ib_disabled") == "ok");
  Topology topology = with_setting("NCCL_IB_DISABLE", "1");
  expect_finding(
      topology, "nccl_ib_disabled", Severity::error, {},
      {"NCCL_IB_DISABLE=1 (environment), and 4 RDMA ports are active", "200 GB/s are not used"});
  for (auto& nic : topology.nics) nic.state = "down";
  CHECK(state_of(topology, "nccl_ib_disabled") == "no active RDMA ports");
}

TEST_CASE("nccl_socket_ifname: prefixes, exact names, exclusions") {
  Topology topology = with_setting("NCCL_SOCKET_IFNAME", "eth");
  CHECK(state_of(topology, "nccl_socket_ifname") == "no source provides net.interfaces");
  set_hosts(topology, fact::net_interfaces, "lo eth0 ib0");
  for (const char* list : {"eth", "=eth0", "^docker", "^=eth", "eth,ib", "x"}) {
    set_hosts(topology, "env.NCCL_SOCKET_IFNAME", list);
    CHECK_MESSAGE(state_of(topology, "nccl_socket_ifname") == "ok", list);
  }
  for (const char* list : {"=eth", "bond0", "^eth,ib,lo"}) {
    set_hosts(topology, "env.NCCL_SOCKET_IFNAME", list);
    expect_finding(topology, "nccl_socket_ifname", Severity::error, {},
                   {"leaves NCCL no interface; the host has lo, eth0 and ib0"});
  }
  set_hosts(topology, "env.NCCL_SOCKET_IFNAME", "ib0,ib1");
  expect_finding(topology, "nccl_socket_ifname", Severity::warning, {},
                 {"names ib1, but the host has only "});
}

TEST_CASE("nccl_p2p_disabled: an error where links join the GPUs") {
  CHECK(state_of(cluster(1), "nccl_p2p_disabled") == "no source provides env.NCCL_P2P_DISABLE");
  CHECK(state_of(with_setting("NCCL_P2P_LEVEL", "NVL"), "nccl_p2p_disabled") == "ok");
  Topology topology = with_setting("NCCL_P2P_DISABLE", "1");
  expect_finding(
      topology, "nccl_p2p_disabled", Severity::error, {},
      {"NCCL_P2P_DISABLE=1 (environment)", "instead of their links of 450 GB/s per GPU"});
  topology.links.clear();
  topology.hosts[0].gpu_links = atoll::IslandState::none;
  CHECK(the_finding(topology, "nccl_p2p_disabled").severity == Severity::warning);
  expect_finding(with_setting("NCCL_P2P_LEVEL", "LOC"), "nccl_p2p_disabled", std::nullopt, {},
                 {"NCCL_P2P_LEVEL=LOC (environment)"});
  CHECK(state_of(with_setting("NCCL_P2P_DISABLE", "1", 1), "nccl_p2p_disabled") ==
        "no host with several GPUs");
}

TEST_CASE("nccl_shm_disabled, nccl_conf: data takes the network inside the host; other settings") {
  CHECK(state_of(cluster(1), "nccl_shm_disabled") == "no source provides env.NCCL_SHM_DISABLE");
  CHECK(state_of(with_setting("", ""), "nccl_shm_disabled") == "ok");
  expect_finding(with_setting("NCCL_SHM_DISABLE", "1"), "nccl_shm_disabled", Severity::warning, {},
                 {"NCCL_SHM_DISABLE=1 (environment)"});
  CHECK(state_of(cluster(1), "nccl_conf") == "no source provides nccl.conf.*");
  Topology topology = with_setting("", "");
  set_hosts(topology, "nccl.conf.NCCL_DEBUG", "WARN");
  CHECK(state_of(topology, "nccl_conf") == "ok");
  set_hosts(topology, "nccl.conf.NCCL_IB_TC", "106");
  set_hosts(topology, "nccl.conf.NCCL_ALGO", "Ring");
  set_hosts(topology, "env.NCCL_ALGO", "Tree");
  expect_finding(topology, "nccl_conf", Severity::info, {"a"},
                 {"nccl.conf sets NCCL_ALGO=Ring (the environment sets Tree)"});
}

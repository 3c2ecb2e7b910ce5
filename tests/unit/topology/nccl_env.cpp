// Tests of the NCCL settings that are recommended for a machine: exactly the necessary settings,
// each with its reason.
#include <fmt/format.h>

#include "unit/topology/doctor.hpp"

namespace fact = atoll::fact;
using namespace machines;

namespace {

std::string env_of(const Topology& topology) { return to_nccl_env(atoll::inspect(topology)); }

constexpr auto nothing =
    "# no settings: the files show no need for any. They do not show the cloud: if --cluster list "
    "shows this machine, use --cluster NAME\n";

}  // namespace

TEST_CASE("nccl env: a plain machine needs nothing") {
  CHECK(env_of(cluster(1)) == nothing);
  CHECK(env_of(cluster(3)) == nothing);
  CHECK(env_of(machines::cpus(2)) == "# no settings: this machine has no GPUs\n");
  Topology down = cluster(1);
  down.nics[1].state = "down";  // NCCL skips a NIC that is down, so no setting is needed
  CHECK(env_of(down) == nothing);
}

TEST_CASE("nccl env: ports of another fabric and slower ones are left out") {
  Topology topology = cluster(2, 2);
  for (const char* host : {"a", "b"})
    machines::rename(machines::add_port(topology, host, 8, "ethernet", 100), "mlx5_bond_0");
  CHECK(env_of(topology) ==
        "# leaves out mlx5_bond_0 (ethernet instead of infiniband)\n"
        "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1\n");
  Topology slow = cluster(1, 2);
  machines::add_port(slow, "a", 9, "infiniband", 100);
  CHECK(contains(env_of(slow), "# leaves out mlx5_9 (100 instead of 400 Gbit/s)\n"));
}

TEST_CASE("nccl env: ports that no GPU uses, if a source tells the way to them") {
  Topology topology = cluster(1, 2);
  machines::add_port(topology, "a", 7);
  topology.nics.back().pci_path = "";
  for (const char* gpu : {"a/gpu0", "a/gpu1"})
    topology.paths.push_back({.a = gpu, .b = "a/mlx5_7", .level = atoll::PathLevel::sys});
  CHECK(env_of(topology) ==
        "# leaves out mlx5_7 (nearest to no GPU)\nNCCL_IB_HCA==mlx5_0:1,mlx5_1:1\n");
  Topology blind = cluster(1, 2);
  machines::add_port(blind, "a", 7);
  hide_places(blind);
  CHECK(env_of(blind) == nothing);
}

TEST_CASE("nccl env: second ports, in the order that people count") {
  Topology topology = cluster(1, 3);
  topology.nics[0].name = "mlx5_10:2";
  topology.nics[1].name = "mlx5_2";
  topology.nics[2].name = "mlx5_0:2";
  machines::add_port(topology, "a", 9, "infiniband", 100);
  CHECK(contains(env_of(topology), "\nNCCL_IB_HCA==mlx5_0:2,mlx5_2:1,mlx5_10:2\n"));
}

TEST_CASE("nccl env: hosts that need different settings are told so in comments") {
  Topology topology = cluster(2, 2);
  machines::add_port(topology, "b", 9, "infiniband", 100);
  CHECK(env_of(topology) ==
        "# on b only: NCCL_IB_HCA==mlx5_0:1,mlx5_1:1 (leaves out mlx5_9 (100 instead of 400 "
        "Gbit/s))\n");
}

TEST_CASE("nccl env: a setting that is wrong here is replaced") {
  Topology topology = cluster(1, 2);
  set_hosts(topology, fact::container, "no");
  set_hosts(topology, "nccl.conf.NCCL_IB_HCA", "mlx5_7");
  CHECK(env_of(topology) ==
        "# selects the ports near the GPUs, unlike the present value mlx5_7 (nccl.conf)\n"
        "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1\n");
  topology = cluster(1, 2);
  set_hosts(topology, "nccl.conf.NCCL_IB_DISABLE", "1");
  set_hosts(topology, "env.NCCL_P2P_DISABLE", "1");
  set_hosts(topology, "env.NCCL_SHM_DISABLE", "1");
  set_hosts(topology, "env.NCCL_IB_PCI_RELAXED_ORDERING", "0");
  const std::string env = env_of(topology);
  CHECK(contains(env, "NCCL_IB_DISABLE is 1 (nccl.conf)\nNCCL_IB_DISABLE=0\n"));
  CHECK(contains(env, "\nNCCL_P2P_DISABLE=0\n"));
  CHECK(contains(env, "\nNCCL_SHM_DISABLE=0\n"));
  CHECK(contains(env, "\nNCCL_IB_PCI_RELAXED_ORDERING=2\n"));
}

TEST_CASE("nccl env: settings that should go are named, since a default fits") {
  Topology topology = cluster(1, 2);
  set_hosts(topology, "env.NCCL_P2P_LEVEL", "LOC");
  set_hosts(topology, "nccl.conf.NCCL_NET_GDR_LEVEL", "LOC");
  CHECK(env_of(topology) ==
        "# unset NCCL_P2P_LEVEL, which is LOC (environment): GPUs reach each other directly\n"
        "# unset NCCL_NET_GDR_LEVEL, which is LOC (nccl.conf): with this value, NICs never access "
        "GPU memory "
        "directly\n");
  set_hosts(topology, "env.NCCL_P2P_LEVEL", "NVL");
  set_hosts(topology, "nccl.conf.NCCL_NET_GDR_LEVEL", "PHB");
  CHECK(env_of(topology) == nothing);
  set_hosts(topology, fact::net_interfaces, "lo eth0 eth1");
  set_hosts(topology, "env.NCCL_SOCKET_IFNAME", "bond0");
  CHECK(contains(env_of(topology), "# unset NCCL_SOCKET_IFNAME, which is bond0 (environment): "));
}

TEST_CASE("nccl env: a replaced NCCL_IB_HCA names each active port that it leaves out") {
  Topology blind = cluster(1, 2);
  machines::add_port(blind, "a", 7);
  hide_places(blind);
  set_hosts(blind, fact::container, "no");
  set_hosts(blind, "env.NCCL_IB_HCA", "mlx4");
  CHECK(contains(env_of(blind), "(no source shows the path to this NIC)\nNCCL_IB_HCA=="));
}

TEST_CASE("nccl env: the RoCE address, only where NCCL would take another one") {
  Topology topology = cluster(1, 2);
  for (auto& nic : topology.nics) nic.layer = "ethernet";
  CHECK(env_of(topology) == nothing);
  set_nics(topology, fact::gid_roce_v2, "3");
  CHECK(env_of(topology) ==
        "# only NCCL before 2.21 needs NCCL_IB_GID_INDEX=3, the routable RoCE v2 address of all "
        "NICs; newer versions find the address\n");
  set_hosts(topology, "nccl.conf.NCCL_IB_GID_INDEX", "1");
  CHECK(env_of(topology) ==
        "# the routable RoCE v2 address of all NICs, but NCCL_IB_GID_INDEX is 1 "
        "(nccl.conf)\nNCCL_IB_GID_INDEX=3\n");
  // The two NICs need different GID indices, so no single setting fits.
  set(topology.nics[0].facts, fact::gid_roce_v2, "5");
  CHECK_FALSE(contains(env_of(topology), "\nNCCL_IB_GID_INDEX="));
}

TEST_CASE("nccl env: the interface, where made-up ones would be taken too") {
  Topology topology = cluster(1, 2);
  set_hosts(topology, fact::net_interfaces, "lo docker0 eth0 br-1f2e veth12 veth34");
  CHECK(env_of(topology) ==
        "# the only physical interface; NCCL would also use br-1f2e, veth12 and veth34\n"
        "NCCL_SOCKET_IFNAME==eth0\n");
  // NCCL tries the interfaces docker0 and virbr0 last, so eth0 needs no setting.
  set_hosts(topology, fact::net_interfaces, "lo docker0 virbr0 eth0");
  CHECK(env_of(topology) == nothing);
  // NCCL tries interfaces with names ib* first, so ib0 needs no setting.
  set_hosts(topology, fact::net_interfaces, "lo ib0 eth0 veth12");
  CHECK(env_of(topology) == nothing);
  // With two physical interfaces, neither is the obvious choice, so no setting is recommended.
  set_hosts(topology, fact::net_interfaces, "lo eth0 eth1 veth12");
  CHECK(env_of(topology) == nothing);
  set_nics(topology, fact::netdev, "eth1");
  CHECK(contains(env_of(topology), "\nNCCL_SOCKET_IFNAME==eth0\n"));
}

TEST_CASE("nccl env: a virtual machine that hides the places of its devices is advised") {
  Topology topology = cluster(1, 2);
  set_hosts(topology, fact::virtual_machine, "yes");
  hide_places(topology);
  std::string env = env_of(topology);
  CHECK(contains(env, "# NCCL_TOPO_FILE=FILE is needed"));
  CHECK_FALSE(contains(env, "\nNCCL_"));
  CHECK_FALSE(contains(env, "GDR_LEVEL"));
  set_hosts(topology, fact::peermem, "yes");
  CHECK(contains(env_of(topology), "NCCL_NET_GDR_LEVEL=PHB"));
  set_hosts(topology, "env.NCCL_TOPO_FILE", "/opt/topo.xml");
  CHECK(env_of(topology) == nothing);
}

TEST_CASE("nccl env: what the networks of providers need is named with its source") {
  const auto says = [](const char* machine, const std::string& need, const std::string& source) {
    const std::string env = env_of(atoll::catalog_cluster(machine));
    CAPTURE(env);
    CHECK(contains(env, need));
    CHECK(contains(env, source));
    CHECK(env.starts_with("# "));
  };
  // Azure's file for each type of machine has these settings.
  for (const char* type : {"ndv4", "ndv5"}) {
    const char* machine = type == std::string("ndv4") ? "azure-nd-a100-v4" : "azure-nd-h100-v5";
    const std::string source = fmt::format("/components/customizations/{}.sh)", type);
    says(machine, fmt::format("\nNCCL_TOPO_FILE=/opt/microsoft/{}/topo.xml\n", type), source);
    says(machine, "implies\nNCCL_IGNORE_CPU_AFFINITY=1\n", "NCCL_IB_PCI_RELAXED_ORDERING=1, which");
  }
  says("aws-p5", "EFA needs the network plugin", "github.com/aws/aws-ofi-nccl");
  says("gcp-a3-mega", "# A3 Mega on GKE: install the plugin with nccl-tcpxo-installer.yaml, run ",
       "/gpudirect-tcpxo/README.md");
  says("gcp-a3-mega", "source $NCCL_LIB_DIR/nccl-env-profile.sh", "docs.cloud.google.com/");
  says("oci-h100", "NCCL_NET_PLUGIN=none", "github.com/oracle-quickstart/oci-hpc");
  CHECK(env_of(atoll::catalog_cluster("hgx-h100")) == nothing);
  // Azure's own file shows neither the cloud nor links, but the PCI domains that Azure chooses.
  Topology azure = atoll::catalog_cluster("azure-nd-h100-v5");
  azure.hosts[0].facts.clear();
  azure.hosts[0].gpu_links = atoll::IslandState::unknown;
  azure.links.clear();
  CHECK(contains(env_of(azure), "\nNCCL_TOPO_FILE=/opt/microsoft/ndv5/"));
  Topology bare = cluster(1, 2);
  bare.hosts[0].gpu_links = atoll::IslandState::unknown;
  CHECK(env_of(bare).starts_with("# not known: "));
  Topology slingshot = cluster(1, 2);
  for (auto& nic : slingshot.nics) nic.layer = "slingshot";
  CHECK(contains(env_of(slingshot), "Slingshot needs the network plugin"));
}

TEST_CASE("nccl env: a shell that reads it runs nothing, whatever the names are") {
  Topology topology = cluster(1, 2);
  machines::add_port(topology, "a", 9, "infiniband", 100);
  topology.nics[0].name = "x;touch y";
  topology.nics[2].name = "z\nreboot";
  topology.hosts[0].name = "a\nreboot";
  set_hosts(topology, fact::net_interfaces, "lo $(reboot) veth1");
  const std::string env = env_of(topology);
  for (std::size_t at = 0; at < env.size(); at = env.find('\n', at) + 1) CHECK(env[at] == '#');
}

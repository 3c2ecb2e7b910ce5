// Tests of the sources that read network adapters and interfaces, on a captured sysfs tree.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "facts.hpp"
#include "sources/source.hpp"
#include "unit/captured_tree.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"

using atoll::get_fact;
using atoll::Topology;
using atoll::TopologyNic;
using topology_test::check_facts;
using topology_test::nics_of;
namespace fact = atoll::fact;
namespace sources = atoll::topology_sources;
using machines::CapturedTree;

namespace {

// Adds an RDMA adapter to the PCI bus and to /sys/class/infiniband. Returns the folder of the
// adapter's first port.
std::string add_adapter(const CapturedTree& tree, const std::string& name, const std::string& busid,
                        const std::string& vendor = "0x15b3") {
  const std::string pci = tree.add_pci("pci0000:15/" + busid);
  tree.write(pci + "vendor", vendor + "\n");
  const std::string adapter = pci + "infiniband/" + name;
  tree.make_folder(adapter);
  tree.link("sys/class/infiniband/" + name, adapter);
  tree.link(adapter + "/device", "sys/devices/pci0000:15/" + busid);
  return adapter + "/ports/1/";
}

void write_port(const CapturedTree& tree, const std::string& port, const std::string& layer,
                const std::string& state, const std::string& rate) {
  tree.write(port + "link_layer", layer + "\n");
  tree.write(port + "state", state + "\n");
  tree.write(port + "rate", rate + "\n");
}

void add_interface(const CapturedTree& tree, const std::string& name, const std::string& state,
                   const std::string& speed, const std::string& device = "") {
  const std::string folder = "sys/class/net/" + name + "/";
  tree.write(folder + "type", "1\n");
  tree.write(folder + "operstate", state + "\n");
  if (!speed.empty()) tree.write(folder + "speed", speed + "\n");
  tree.write(folder + "mtu", "1500\n");
  if (!device.empty()) tree.link(folder + "device", device);
}

Topology look_at_ports(const CapturedTree& tree, Topology topology = {}) {
  if (topology.hosts.empty()) machines::add_host(topology, "h");
  sources::sysfs_ports(tree.request(), topology);
  return topology;
}

}  // namespace

TEST_CASE("ports: an InfiniBand port in full") {
  const CapturedTree tree;
  const std::string port = add_adapter(tree, "mlx5_0", "0000:16:00.0");
  write_port(tree, port, "InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)");
  tree.write_lines(
      port,
      "phys_state 5: LinkUp; lid 0x1f; sm_lid 0x1; ../../sys_image_guid 0c42:a103:00b3:bb40; "
      "../../node_guid 0c42:a103:00b3:bb41; ../../fw_ver 28.39.1002; "
      "counters/symbol_error 12; counters/link_downed 3; counters/port_rcv_errors 0; "
      "counters/port_xmit_discards 99");
  const Topology topology = look_at_ports(tree);
  REQUIRE(nics_of(topology) == "h/mlx5_0 00000000:16:00.0 infiniband active 400\n");
  const TopologyNic& nic = topology.nics[0];
  CHECK(nic.host == "h");
  CHECK(nic.evidence == "sysfs");
  CHECK(nic.adapter == "0c42:a103:00b3:bb40");
  check_facts(nic.facts,
              "link.width 4; phys_state linkup; lid 31; sm_lid 1; node_guid 0c42:a103:00b3:bb41; "
              "firmware 28.39.1002; link.errors symbol_error 12, link_downed 3; gid.roce_v2");
}

TEST_CASE("ports: states, and what a port that is not up does not tell") {
  const CapturedTree tree;
  const std::string down = add_adapter(tree, "mlx5_0", "0000:16:00.0");
  write_port(tree, down, "InfiniBand", "1: DOWN", "10 Gb/sec (4X SDR)");
  tree.write(down + "phys_state", "2: Polling\n");
  const std::string init = add_adapter(tree, "mlx5_1", "0000:17:00.0");
  write_port(tree, init, "InfiniBand", "2: INIT", "200 Gb/sec (4X HDR)");
  tree.write(init + "counters/symbol_error", "0\n");
  const std::string narrow = add_adapter(tree, "mlx5_2", "0000:18:00.0");
  write_port(tree, narrow, "InfiniBand", "4: ACTIVE", "2.5 Gb/sec (1X SDR)");
  const std::string odd = add_adapter(tree, "mlx5_10", "0000:19:00.0");
  write_port(tree, odd, "InfiniBand", "4: ACTIVE", "-4 Gb/sec");
  const Topology topology = look_at_ports(tree);
  REQUIRE(nics_of(topology) ==
          "h/mlx5_0 00000000:16:00.0 infiniband down -\n"
          "h/mlx5_1 00000000:17:00.0 infiniband init -\n"
          "h/mlx5_2 00000000:18:00.0 infiniband active 2.5\n"
          "h/mlx5_10 00000000:19:00.0 infiniband active -\n");
  CHECK(topology.nics[0].evidence.empty());
  check_facts(topology.nics[0].facts, "phys_state polling; link.errors");
  check_facts(topology.nics[1].facts, "link.errors none");
  check_facts(topology.nics[2].facts, "link.width 1");
}

TEST_CASE("ports: RoCE, its GIDs, interface and MTU") {
  const CapturedTree tree;
  const std::string port = add_adapter(tree, "mlx5_0", "0000:16:00.0");
  write_port(tree, port, "Ethernet", "4: ACTIVE", "200 Gb/sec (4X HDR)");
  tree.write(port + "lid", "0x0\n");
  const auto gid = [&](int number, const std::string& text, const std::string& type) {
    tree.write(fmt::format("{}gids/{}", port, number), text + "\n");
    if (!type.empty()) tree.write(fmt::format("{}gid_attrs/types/{}", port, number), type + "\n");
  };
  const std::string local = "fe80:0000:0000:0000:0e42:a1ff:feb3:bb40";
  const std::string mapped = "0000:0000:0000:0000:0000:ffff:0a00:0001";
  gid(0, local, "IB/RoCE v1");
  gid(1, local, "RoCE v2");
  gid(2, "0000:0000:0000:0000:0000:0000:0000:0000", "");
  gid(3, mapped, "IB/RoCE v1");
  gid(4, "0000:0000:0000:0000:0000:ffff:a9fe:0001", "RoCE v2");
  tree.write(port + "gid_attrs/ndevs/0", "ens1np0\n");
  add_interface(tree, "ens1np0", "up", "200000");
  tree.write("sys/class/net/ens1np0/mtu", "9000\n");
  Topology topology = look_at_ports(tree);
  REQUIRE(topology.nics.size() == 1);
  CHECK(topology.nics[0].layer == "ethernet");
  check_facts(topology.nics[0].facts, "gid.roce_v2 none; netdev ens1np0; mtu 9000; lid");
  gid(5, mapped, "RoCE v2");
  CHECK(get_fact(look_at_ports(tree).nics[0].facts, fact::gid_roce_v2) == "5");
}

TEST_CASE("ports: adapters without a GUID are not one adapter, and EFA is no Ethernet") {
  const CapturedTree tree;
  for (const char* name : {"rdmap79s0", "rdmap80s0"}) {
    const std::string port = add_adapter(
        tree, name, fmt::format("0000:{}:00.0", std::string_view(name).substr(5, 2)), "0x1d0f");
    write_port(tree, port, "Unspecified", "4: ACTIVE", "100 Gb/sec (4X EDR)");
    tree.write_lines(
        port, "../../sys_image_guid 0000:0000:0000:0000; ../../node_guid 0000:0000:0000:0000");
  }
  // hwloc has reported the adapter as Ethernet and with a GUID of zeros.
  Topology topology;
  machines::add_host(topology, "h");
  TopologyNic& known = machines::add_nic(topology, "h", 1, "rdmap79s0");
  known.layer = "ethernet";
  known.adapter = "0000:0000:0000:0000";
  topology = look_at_ports(tree, topology);
  REQUIRE(topology.nics.size() == 2);
  for (const TopologyNic& nic : topology.nics) {
    CHECK(nic.layer == "efa");
    CHECK(nic.adapter.empty());
    CHECK(nic.rate_gbit_s == 100);
    CHECK(get_fact(nic.facts, fact::node_guid).empty());
  }
}

TEST_CASE("ports: Omni-Path, a second port, RDMA in software") {
  const CapturedTree tree;
  write_port(tree, add_adapter(tree, "hfi1_0", "0000:16:00.0", "0x8086"), "InfiniBand", "4: ACTIVE",
             "100 Gb/sec (4X EDR)");
  const std::string dual = add_adapter(tree, "mlx4_0", "0000:17:00.0");
  write_port(tree, dual, "InfiniBand", "4: ACTIVE", "56 Gb/sec (4X FDR)");
  write_port(tree, dual + "../2/", "Ethernet", "4: ACTIVE", "40 Gb/sec (4X QDR)");
  tree.write("sys/devices/pci0000:15/0000:17:00.0/net/ib0/dev_port", "0\n");
  tree.write("sys/devices/pci0000:15/0000:17:00.0/net/eth5/dev_port", "1\n");
  write_port(tree, "sys/class/infiniband/rxe0/ports/1/", "Ethernet", "4: ACTIVE",
             "2.5 Gb/sec (1X SDR)");
  tree.make_folder("sys/class/infiniband/rxe0/ports/many");
  const Topology topology = look_at_ports(tree);
  REQUIRE(nics_of(topology) ==
          "h/hfi1_0 00000000:16:00.0 omni-path active 100\n"
          "h/mlx4_0 00000000:17:00.0 infiniband active 56\n"
          "h/mlx4_0:2 00000000:17:00.0 ethernet active 40\n"
          "h/rxe0 - ethernet active 2.5 virtual\n");
  CHECK(get_fact(topology.nics[1].facts, fact::netdev) == "ib0");
  CHECK(get_fact(topology.nics[2].facts, fact::netdev) == "eth5");
}

TEST_CASE("interfaces: without an RDMA adapter they are the NICs") {
  const CapturedTree tree;
  const std::string pci = tree.add_pci("pci0000:00/0000:00:03.0");
  add_interface(tree, "eth0", "up", "25000", pci);
  add_interface(tree, "eth1", "down", "-1", tree.add_pci("pci0000:00/0000:00:04.0"));
  const std::string carrier = tree.add_pci("pci0000:00/0000:00:05.0");
  tree.make_folder(carrier + "virtio3");
  add_interface(tree, "eth2", "up", "-1", carrier + "virtio3");
  add_interface(tree, "docker0", "up", "10000");
  add_interface(tree, "veth12", "unknown", "10000");
  add_interface(tree, "lo", "unknown", "");
  tree.write("sys/class/net/lo/type", "772\n");
  tree.write("sys/class/net/bonding_masters", "\n");
  const Topology topology = look_at_ports(tree);
  CHECK(get_fact(topology.hosts[0].facts, fact::net_interfaces) ==
        "eth0 eth1 eth2 docker0 lo veth12");
  REQUIRE(nics_of(topology) ==
          "h/eth0 00000000:00:03.0 ethernet active 25\n"
          "h/eth1 00000000:00:04.0 ethernet down -\n"
          "h/eth2 00000000:00:05.0 ethernet active -\n"
          "h/docker0 - ethernet active 10 virtual\n"
          "h/veth12 - ethernet - 10 virtual\n");
  CHECK(get_fact(topology.nics[0].facts, fact::mtu) == "1500");
}

TEST_CASE("interfaces: with an RDMA adapter they are listed only") {
  const CapturedTree tree;
  write_port(tree, add_adapter(tree, "mlx5_0", "0000:16:00.0"), "InfiniBand", "4: ACTIVE",
             "400 Gb/sec (4X NDR)");
  add_interface(tree, "eth0", "up", "25000", tree.add_pci("pci0000:00/0000:00:03.0"));
  const Topology topology = look_at_ports(tree);
  REQUIRE(topology.nics.size() == 1);
  CHECK(topology.nics[0].name == "mlx5_0");
  CHECK(get_fact(topology.hosts[0].facts, fact::net_interfaces) == "eth0");
}

TEST_CASE("interfaces: Slingshot by its vendor, whatever it is called") {
  const CapturedTree tree;
  const std::string known = tree.add_pci("pci0000:c0/0000:c1:00.0");
  tree.write(known + "vendor", "0x17db\n");
  add_interface(tree, "hsi0", "up", "200000", known);
  const std::string other = tree.add_pci("pci0000:d0/0000:d1:00.0");
  tree.write(other + "vendor", "0x17db\n");
  tree.make_folder(other + "cxi/cxi1");
  add_interface(tree, "hsn1", "down", "200000", other);
  // This IP over InfiniBand interface has the name of a Slingshot interface.
  const std::string mellanox = tree.add_pci("pci0000:e0/0000:e1:00.0");
  tree.write(mellanox + "vendor", "0x15b3\n");
  add_interface(tree, "hsi2", "up", "100000", mellanox);
  Topology topology;
  machines::add_host(topology, "h");
  machines::add_nic(topology, "h", 1, "hsi0").busid = "00000000:c1:00.0";
  topology = look_at_ports(tree, topology);
  REQUIRE(nics_of(topology) ==
          "h/hsi0 00000000:c1:00.0 slingshot active 200\n"
          "h/cxi1 00000000:d1:00.0 slingshot down -\n");
  CHECK(get_fact(topology.nics[1].facts, fact::netdev) == "hsn1");
}

TEST_CASE("interfaces: hundreds of them fit into one text, hardware first") {
  const CapturedTree tree;
  for (int i = 0; i < 600; ++i) tree.make_folder(fmt::format("sys/class/net/cali{:011}", i));
  add_interface(tree, "zeth0", "up", "25000", tree.add_pci("pci0000:00/0000:00:03.0"));
  const Topology topology = look_at_ports(tree);
  const auto names = get_fact(topology.hosts[0].facts, fact::net_interfaces);
  CHECK(names.size() < 4096);
  CHECK(names.starts_with("zeth0 cali00000000000 "));
  CHECK_FALSE(names.ends_with(" "));
  CHECK(topology.nics.size() == 65);
  CHECK(Topology::from_json(topology.to_json(), "live").nics.size() == 65);
}

TEST_CASE("ports: a host without /sys") {
  const CapturedTree tree;
  const Topology topology = look_at_ports(tree);
  CHECK(topology.nics.empty());
  CHECK(topology.hosts[0].facts.empty());
}

TEST_CASE("ports: counters of errors and of congestion") {
  const CapturedTree tree;
  const std::string port = add_adapter(tree, "mlx5_0", "0000:16:00.0");
  write_port(tree, port, "Ethernet", "4: ACTIVE", "200 Gb/sec (4X HDR)");
  tree.write(port + "counters/symbol_error", "2\n");
  tree.write(port + "counters/port_xmit_wait", "18446744073709551615\n");  // too large to be read
  tree.write(port + "counters/port_xmit_discards", "99\n");
  for (const char* name :
       {"packet_seq_err", "implied_nak_seq_err", "roce_adp_retrans", "local_ack_timeout_err"})
    tree.write(port + "hw_counters/" + name, "0\n");
  tree.write_lines(port,
                   "hw_counters/out_of_sequence 4; hw_counters/rnr_nak_retry_err 5; "
                   "hw_counters/np_ecn_marked_roce_packets 6; hw_counters/np_cnp_sent 7; "
                   "hw_counters/rp_cnp_handled 8; hw_counters/lifespan 10");
  // The counters of Soft-RoCE, whose adapters have no folder `counters`.
  const std::string soft = "sys/class/infiniband/rxe0/ports/1/";
  write_port(tree, soft, "Ethernet", "4: ACTIVE", "2.5 Gb/sec (1X SDR)");
  tree.write_lines(soft,
                   "hw_counters/link_downed 1; hw_counters/rcvd_seq_err 2; "
                   "hw_counters/out_of_seq_request 0; hw_counters/sent_pkts 1000");
  const std::string idle = add_adapter(tree, "mlx5_1", "0000:17:00.0");
  write_port(tree, idle, "InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)");
  tree.write(idle + "counters/port_xmit_wait", "0\n");
  write_port(tree, add_adapter(tree, "mlx5_2", "0000:18:00.0"), "InfiniBand", "4: ACTIVE", "");
  // Without a known host, the source adds RDMA ports alone.
  add_interface(tree, "eth0", "up", "25000", tree.add_pci("pci0000:00/0000:00:03.0"));
  Topology topology;
  sources::sysfs_ports(tree.request(), topology);
  REQUIRE(topology.nics.size() == 4);
  check_facts(
      topology.nics[0].facts,
      "link.errors symbol_error 2; link.congestion out_of_sequence 4, port_xmit_discards 99, "
      "rnr_nak_retry_err 5, np_ecn_marked_roce_packets 6, np_cnp_sent 7, rp_cnp_handled 8");
  check_facts(topology.nics[1].facts, "link.errors; link.congestion none");
  CHECK(get_fact(topology.nics[2].facts, fact::congestion).empty());
  CHECK(topology.nics[3].name == "rxe0");
  check_facts(topology.nics[3].facts, "link.errors link_downed 1; link.congestion rcvd_seq_err 2");
  CHECK(atoll::is_momentary(fact::congestion));
}

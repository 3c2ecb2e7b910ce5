// Tests of reading NCCL topology files of a few lines each.
#include <sys/resource.h>

#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"
#include "unit/topology/nccl_files.hpp"

namespace {

using namespace nccl_files;
using atoll::get_fact;
using atoll::IslandState;
using atoll::Topology;
using machines::conflicts_of;
using machines::contains;
using machines::gpus_of;
using machines::islands_of;
using machines::links_of;
using topology_test::check_facts;
using topology_test::error_of;
namespace fact = atoll::fact;

}  // namespace

TEST_CASE("an HGX board: all links of a GPU to its switches add up") {
  const std::string links =
      nvlink("0000:c3:00.0", 5, "0x068000") + nvlink("0000:c4:00.0", 5, "0x068000") +
      nvlink("0000:c5:00.0", 4, "0x068000") + nvlink("0000:c6:00.0", 4, "0x068000");
  const Topology topology =
      read(system(cpu("numaid=\"0\" affinity=\"000000ff\"", gpu("0000:1b:00.0", 0, links)) +
                  cpu("numaid=\"1\" affinity=\"0000ff00\"", gpu("0000:9B:00.0", 1, links))));
  REQUIRE(topology.hosts.size() == 1);
  CHECK(topology.hosts[0].numa_nodes == 2);
  CHECK(topology.hosts[0].host_threads == 16);
  CHECK(topology.hosts[0].gpu_links == IslandState::known);
  REQUIRE(gpus_of(topology) ==
          "m/gpu0 00000000:1b:00.0 index 0 numa 0 -; m/gpu1 00000000:9b:00.0 index 1 numa 1 -; ");
  check_facts(topology.gpus[1].facts, "sm 90; gdr yes; nvlink.active 18");
  CHECK(links_of(topology) ==
        "m/gpu0 - m/nvswitch0 nvlink 18 450; m/gpu1 - m/nvswitch0 nvlink 18 450; ");
  CHECK(islands_of(topology) == "2 known nvlink 450 450; ");
}

TEST_CASE("of two statements about a pair the smaller is believed") {
  const Topology topology = read(one_cpu(gpu("0:1:00.0", 0, to_gpu("0:2:00.0", 4)) +
                                         gpu("0:2:00.0", 1, to_gpu("0:1:00.0", 3))));
  CHECK(links_of(topology) == "m/gpu0 - m/gpu1 nvlink 3 75; ");
  CHECK(conflicts_of(topology) ==
        "m/gpu0 - m/gpu1 links 3 (dumps/m.xml, m/gpu1), not 4 (dumps/m.xml, m/gpu0); ");
}

TEST_CASE("a side that says nothing does not contradict, one that denies does") {
  const std::string stated = gpu("0:1:00.0", 0, to_gpu("0:2:00.0", 4));
  const Topology silent = read(one_cpu(stated + pci("0:2:00.0", "0x030200")));
  CHECK(silent.conflicts.empty());
  CHECK(silent.hosts[0].gpu_links == IslandState::known);
  CHECK(island_sizes(silent) == std::vector<std::size_t>{2});
  const Topology denied = read(one_cpu(stated + gpu("0:2:00.0", 1)));
  CHECK(denied.links.size() == 1);
  CHECK(conflicts_of(denied).ends_with(", not 0 (dumps/m.xml, m/gpu1); "));
}

TEST_CASE("links of a host are unknown while a GPU is known by its class alone") {
  const Topology silent = read(one_cpu(pci("0:1:00.0", "0x030200") + pci("0:2:00.0", "0x030000") +
                                       pci("0:3:00.0", "0x038000") + pci("0:4:00.0", "0x120000") +
                                       pci("0:5:00.0", "0x03")));
  // The display adapter of a server's board is no GPU.
  CHECK(read(one_cpu("<pci busid=\"0:1:00.0\" class=\"0x030000\" vendor=\"0x1a03\"/>"
                     "<pci busid=\"0:2:00.0\" class=\"0x030000\" vendor=\"0x10de\"/>"))
            .gpus.size() == 1);
  CHECK(silent.gpus[0].index == -1);
  CHECK(silent.hosts[0].gpu_links == IslandState::unknown);
  CHECK(island_sizes(silent) == std::vector<std::size_t>{5});
  const std::string pair =
      gpu("0:1:00.0", 0, to_gpu("0:2:00.0", 4)) + gpu("0:2:00.0", 1, to_gpu("0:1:00.0", 4));
  const auto links = [](const std::string& devices) {
    return read(one_cpu(devices)).hosts[0].gpu_links;
  };
  CHECK(links(pair) == IslandState::known);
  CHECK(links(pair + pci("0:3:00.0", "0x030200")) == IslandState::unknown);
  CHECK(links(gpu("0:1:00.0", 0) + pci("0:3:00.0", "0x030200")) == IslandState::unknown);
  CHECK(links(gpu("0:1:00.0", 0) + gpu("0:2:00.0", 1)) == IslandState::none);
}

TEST_CASE("links that point at themselves say nothing") {
  const Topology alone = read(one_cpu(gpu("0:1:00.0", 0, to_gpu("00000000:01:00.0", 12)) +
                                      gpu("0:2:00.0", 1, to_gpu("0:2:00.0", 12))));
  CHECK(alone.links.empty());
  CHECK(islands_of(alone) == "2 unknown - - -; ");
  const Topology beside =
      read(one_cpu(gpu("0:1:00.0", 0, to_gpu("0:1:00.0", 12) + to_gpu("0:2:00.0", 4)) +
                   gpu("0:2:00.0", 1, to_gpu("0:1:00.0", 4))));
  CHECK(beside.hosts[0].gpu_links == IslandState::known);
  CHECK(links_of(beside) == "m/gpu0 - m/gpu1 nvlink 4 100; ");
}

TEST_CASE("a switch that the machine cannot see joins its GPUs") {
  for (const char* target : {"fffffff:ff:ff.0", "FFFFFFF:FFFF:FF", "0000:c3:00.0", ""}) {
    CAPTURE(target);
    const std::string link = nvlink(target, 18, "0x068000");
    const Topology topology = read(one_cpu(gpu("0:1:00.0", 0, link) + gpu("0:2:00.0", 1, link)));
    REQUIRE(topology.links.size() == 2);
    CHECK(topology.links[1].b == "m/nvswitch0");
    CHECK(island_sizes(topology) == std::vector<std::size_t>{2});
  }
}

TEST_CASE("an island spans the hosts of one file whose GPUs point at a hidden switch") {
  const std::string gpus = gpu("0:1:00.0", 0, hidden_switch) + gpu("0:2:00.0", 1, hidden_switch);
  const Topology topology = read(system(cpu("host_hash=\"0xa\" numaid=\"0\"", gpus) +
                                        cpu("host_hash=\"not hex\" numaid=\"0\"", gpus)));
  REQUIRE(topology.hosts.size() == 2);
  CHECK(topology.hosts[0].id == "m-0");
  CHECK(topology.hosts[1].id == "m-1");
  CHECK(get_fact(topology.hosts[1].facts, fact::host_hash) == "not hex");
  CHECK(topology.gpus[3].id == "m-1/gpu1");
  CHECK(topology.links[0].b == "rack:m/nvswitch0");
  REQUIRE(island_sizes(topology) == std::vector<std::size_t>{4});
  CHECK(find_islands(topology)[0].hosts == std::vector<std::string>{"m-0", "m-1"});
}

TEST_CASE("hosts in one file keep their own switches apart") {
  const std::string link = nvlink("0000:c3:00.0", 18, "0x068000");
  const std::string gpus = gpu("0:1:00.0", 0, link) + gpu("0:2:00.0", 1, link);
  const Topology own =
      read(system(cpu("host_hash=\"0xa\"", gpus) + cpu("host_hash=\"0xb\"", gpus)));
  CHECK(island_sizes(own) == std::vector<std::size_t>{2, 2});
  const Topology one_hidden =
      read(system(cpu("host_hash=\"0xa\"", gpus) +
                  cpu("host_hash=\"0xb\"", gpu("0:1:00.0", 0, hidden_switch))));
  CHECK(island_sizes(one_hidden) == std::vector<std::size_t>{2, 1});
  CHECK(one_hidden.links.back().b == "m-1/nvswitch0");
}

TEST_CASE("a <cpu> without a hash belongs to the only host with one") {
  CHECK(read(system(cpu("host_hash=\"0xa\"", "") + cpu("numaid=\"1\"", ""))).hosts.size() == 1);
  CHECK(read(system(cpu("host_hash=\"0xa\"", "") + cpu("host_hash=\"0xb\"", "") +
                    cpu("numaid=\"1\"", "")))
            .hosts.size() == 3);
}

TEST_CASE("links to processors join nothing") {
  const std::string bridge = "<pci busid=\"0006:00:00.0\" class=\"0x068000\" vendor=\"0x1014\"/>";
  const auto gpus = [](const std::string& tclass) {
    const std::string link = nvlink("0006:00:00.0", 3, tclass);
    return gpu("4:04:00.0", 0, link, 70) + gpu("4:05:00.0", 1, link, 70);
  };
  const std::vector<std::string> machines{
      one_cpu(gpus("0x068001")), one_cpu(bridge + gpus("0x068000")),
      system(cpu("numaid=\"0\" arch=\"ppc64\"", gpus("0x068000")))};
  for (const std::string& machine : machines) {
    CAPTURE(machine);
    const Topology topology = read(machine);
    REQUIRE(topology.links.size() == 2);
    CHECK(topology.links[0].type == "nvlink_cpu");
    CHECK(topology.links[0].count == 3);
    CHECK(topology.hosts[0].gpu_links == IslandState::known);
    CHECK(island_sizes(topology) == std::vector<std::size_t>{1, 1});
  }
}

TEST_CASE("RCCL's dialect") {
  const auto apu = [](const std::string& busid, int dev, const std::string& target) {
    return fmt::format(
        "<pci busid=\"{}\" class=\"0x120000\" vendor=\"0x1002\" device=\"0x74a1\">"
        "<gpu dev=\"{}\" sm=\"80\" gcn=\"910\"><xgmi target=\"{}\" count=\"2\" "
        "tclass=\"0x120000\"/></gpu></pci>",
        busid, dev, target);
  };
  const Topology topology =
      read("<system version=\"2\"><cpu numaid=\"0\">" + apu("0:1:00.0", 0, "0:2:00.0") +
           apu("0:2:00.0", 1, "0:1:00.0") + "</cpu></system>");
  REQUIRE(topology.links.size() == 1);
  CHECK(links_of(topology) == "m/gpu0 - m/gpu1 xgmi 2 -; ");
  CHECK(topology.gpus[0].model == "AMD Instinct MI300X");
  check_facts(topology.gpus[0].facts, "gcn gfx90a; sm");
  CHECK(islands_of(topology) == "2 known xgmi - -; ");
}

TEST_CASE("links to GPUs that the file leaves out are kept and join nothing") {
  const Topology topology = read(one_cpu(gpu("0:1:00.0", 0, to_gpu("0:9:00.0", 4)) +
                                         gpu("0:2:00.0", 1, to_gpu("0:9:00.0", 4))));
  REQUIRE(topology.links.size() == 2);
  CHECK(links_of(topology).starts_with("m/gpu0 - m/unseen-00000000:09:00.0 nvlink_unseen 4 "));
  // The two listed GPUs may be linked through GPUs that the file omits, so it is unknown whether
  // they are linked.
  CHECK(islands_of(topology) == "2 unknown - - -; ");
  CHECK(get_fact(topology.gpus[0].facts, fact::nvlink_active) == "4");
}

TEST_CASE("a NIC") {
  const Topology topology = read(one_cpu(
      "<pci busid=\"0000:0c:00.0\" class=\"0x020700\" vendor=\"0x15b3\" device=\"0x1021\" "
      "link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">" +
      net("name=\"mlx5_0\" speed=\"400000\" port=\"1\" guid=\"0x9a70500003ae6d94\" gdr=\"0\"") +
      "</pci>"));
  REQUIRE(topology_test::nics_of(topology) == "m/mlx5_0 00000000:0c:00.0 infiniband - 400\n");
  const atoll::TopologyNic& nic = topology.nics[0];
  CHECK(nic.evidence == "nccl xml");
  // The GUID of the adapter, as the Linux kernel prints it.
  CHECK(nic.adapter == "946d:ae03:0050:709a");
  CHECK(nic.numa == 0);
  check_facts(nic.facts, "gdr no; pci.device 15b3:1021; pci.class 0207; pci.gt_s 32; pci.width 16");
}

TEST_CASE("what is no rate and no GUID is left out") {
  for (const char* speed : {"0", "-1", "", "fast"})
    CHECK_FALSE(
        read(one_cpu(net(fmt::format("name=\"eth0\" speed=\"{}\"", speed)))).nics[0].rate_gbit_s);
  for (const char* guid : {"0x0", "0x3", "0xREDACTED", ""})
    CHECK(read(one_cpu(net(fmt::format("name=\"cxi0\" guid=\"{}\"", guid)))).nics[0].adapter == "");
}

TEST_CASE("link layers: by class and vendor, else by the name") {
  const auto layer = [](const std::string& device) { return read(one_cpu(device)).nics[0].layer; };
  const std::string ib = net("name=\"ib0\"");
  CHECK(layer("<pci busid=\"0:1:00.0\" class=\"0x020700\" vendor=\"0x15b3\">" + ib + "</pci>") ==
        "infiniband");
  CHECK(layer("<pci busid=\"0:1:00.0\" class=\"0x028000\" vendor=\"0x1234\">" + ib + "</pci>") ==
        "");
  CHECK(layer(net("name=\"eth0\"")) == "ethernet");
  CHECK(layer(ib) == "");
}

TEST_CASE("an interface below several <cpu> is one NIC without a place") {
  const std::string eth = net("name=\"eth0\" speed=\"10000\" port=\"0\"");
  const Topology topology = read(system(cpu("numaid=\"0\"", eth) + cpu("numaid=\"1\"", eth)));
  REQUIRE(topology.nics.size() == 1);
  CHECK(topology.nics[0].numa == -1);
  CHECK(read(one_cpu(eth)).nics[0].numa == 0);
}

TEST_CASE("virtual interfaces are told by their names") {
  for (const char* name : {"veth268d912", "br-3c276cd5dbc3", "docker0", "virbr0", "lo", "vxlan.1",
                           "flannel.1", "cni0", "cali12", "tun0", "tap1", "br0"})
    CHECK_MESSAGE(read(one_cpu(net(fmt::format("name=\"{}\"", name)))).nics[0].is_virtual, name);
  for (const char* name : {"eth0", "eno1np0", "mlx5_bond_0", "bond0", "ib0", "broadcom"})
    CHECK_MESSAGE(!read(one_cpu(net(fmt::format("name=\"{}\"", name)))).nics[0].is_virtual, name);
}

TEST_CASE("an adapter without <net> is called by its bus id") {
  const Topology topology = read(one_cpu(
      "<pci busid=\"0000:10:1b.0\" class=\"0x020000\" vendor=\"0x1d0f\" device=\"0xefa0\"/>" +
      pci("00000001:01:00.0", "0x020700", "<nic/>") + pci("0000:4f:00.0", "") +
      pci("0000:02:00.0", "0x020000", pci("0000:03:00.0", "0x010000"))));
  REQUIRE(topology.nics.size() == 2);
  CHECK(topology.nics[0].name == "nic-0000:10:1b.0");
  CHECK(topology.nics[0].layer == "efa");
  CHECK_FALSE(topology.nics[0].rate_gbit_s);
  CHECK(topology.nics[1].name == "nic-0001:01:00.0");
}

TEST_CASE("speeds and widths as files have them") {
  const auto told = [](const std::string& speed, const std::string& width) {
    const auto gpu = read(one_cpu(fmt::format("<pci busid=\"0:1:00.0\" class=\"0x030200\" "
                                              "link_speed=\"{}\" link_width=\"{}\"/>",
                                              speed, width)))
                         .gpus[0];
    return fmt::format("{} x{}", get_fact(gpu.facts, fact::pci_gt_s),
                       get_fact(gpu.facts, fact::pci_width));
  };
  CHECK(told("32.0 GT/s PCIe", "16") == "32 x16");
  CHECK(told("32 GT/s PCIe/s", "16") == "32 x16");
  CHECK(told("2.5 GT/s", "8") == "2.5 x8");
  for (const char* odd : {"", "Unknown speed", "31 GT/s", "16", "1e999 GT/s", "nan GT/s"})
    CHECK_MESSAGE(told(odd, "0") == " x", odd);
  for (const char* odd : {"", "255", "-1", "wide"}) CHECK_MESSAGE(told("", odd) == " x", odd);
}

TEST_CASE("affinity masks, with short words and joined over the NUMA nodes") {
  const auto threads = [](const char* first, const char* second) {
    return read(system(cpu(fmt::format("affinity=\"{}\"", first), "") +
                       cpu(fmt::format("affinity=\"{}\"", second), "")))
        .hosts[0]
        .host_threads;
  };
  CHECK(threads("5555,55555555", "aaaa,aaaaaaaa") == 48);
  CHECK(threads("f,0000000f", "00000000,00000003") == 8);
  CHECK(threads("", "garbage") == 0);
  CHECK(threads("1ffffffff", "1") == 1);
  const atoll::TopologyHost host = read(one_cpu("")).hosts[0];
  CHECK(host.packages == 0);
  CHECK(host.cores == 0);
}

TEST_CASE("GPUs whose numbers do not tell them apart are numbered by bus id") {
  const Topology twice = read(one_cpu(gpu("0:9:00.0", 0) + gpu("0:1:00.0", 0)));
  CHECK(gpus_of(twice) ==
        "m/gpu0 00000000:01:00.0 index 0 numa 0 -; m/gpu1 00000000:09:00.0 index 0 numa 0 -; ");
  const Topology told = read(one_cpu(gpu("0:9:00.0", 4) + gpu("0:1:00.0", 6)));
  CHECK(gpus_of(told).starts_with("m/gpu4 00000000:09:00.0 index 4 "));
}

TEST_CASE("PCI paths: bridges are shared, roots are not") {
  const Topology topology = read(system(
      cpu("numaid=\"0\"", pci("ffff:ff:01.0", "0x060400",
                              pci("0001:00:00.0", "0x030200") + pci("0101:00:00.0", "0x020700")) +
                              pci("ffff:ff:02.0", "0x060400", pci("0002:00:00.0", "0x030200"))) +
      cpu("numaid=\"1\"", pci("0000:3b:00.0", "0x030200"))));
  CHECK(topology.gpus[1].pci_path == "pciffff:ff/0000ffff:ff:01.0");
  CHECK(topology.nics[0].pci_path == topology.gpus[1].pci_path);
  CHECK(topology.gpus[2].pci_path == "pciffff:ff:02.0/0000ffff:ff:02.0");
  CHECK(topology.gpus[0].pci_path == "pci0000:3b");
  CHECK(topology.gpus[0].numa == 1);
}

TEST_CASE("a bridge and a NIC of one bus id, as templates made by hand have them") {
  const Topology topology =
      read(one_cpu(pci("0:a1:00.0", "0x060400",
                       gpu("0:a9:00.0", 0) + pci("0:b1:00.0", "0x020700", net("name=\"mlx5_0\""))) +
                   pci("0:b1:00.0", "0x060400", gpu("0:b2:00.0", 1))));
  CHECK(topology.gpus.size() == 2);
  CHECK(topology.nics[0].pci_path == "pci0000:a1/00000000:a1:00.0");
}

// The fuzzer nccl_xml covers other damage.
TEST_CASE("damage is told with the byte where it stands") {
  const std::string itself = pci("0:1:00.0", "", pci("0:2:00.0", "", pci("0:1:00.0", "")));
  CHECK(error_of(nccl_files::read, one_cpu(itself)) ==
        "dumps/m.xml: byte 103: <pci>: 00000000:01:00.0 is nested inside itself");
  const auto said = [](const std::string& children, const char* words) {
    const std::string text = error_of(nccl_files::read, one_cpu(children));
    CHECK_MESSAGE(text.starts_with("dumps/m.xml: byte "), text);
    CHECK_MESSAGE(text.find(words) != std::string::npos, text);
  };
  said("<pci class=\"0x030200\"/>", "not a bus id");
  said(gpu("0:1:00.0", 0) + gpu("0000:01:00.0", 1), "two GPUs of one host have the bus id");
  for (const char* count : {"0", "1025", "many"})
    said(gpu("0:1:00.0", 0, fmt::format("<nvlink target=\"0:2:00.0\" count=\"{}\"/>", count)),
         "the number of links is not");
  said(gpu("0:1:00.0", 0,
           nvlink("0:c3:00.0", 1024, "0x068000") + nvlink("0:c4:00.0", 1, "0x068000")),
       "the number of links is not");
  said(net("speed=\"1000\""), "neither a name");
  said(net(fmt::format("name=\"{}\"", std::string(256, 'n'))), "too long");
  said(net("name=\"&#27;[31m\""), "cannot be printed");
  said(gpu("0:1:00.0", 0) + net("name=\"gpu0\""), "the name of a GPU");
  CHECK(contains(error_of(nccl_files::read, "<system/>"), "no <cpu>"));
}

TEST_CASE("a file cannot make the reader allocate or recurse without bound") {
  std::string deep, end;
  for (int i = 0; i < 200; ++i) {
    deep += fmt::format("<pci busid=\"0:{:x}:00.0\">", i);
    end += "</pci>";
  }
  CHECK(contains(error_of(nccl_files::read, one_cpu(deep + end)), "levels deep"));
  std::string many;
  for (int i = 0; i < 65'537; ++i)
    many += fmt::format("<pci busid=\"{:x}:{:x}:00.0\" class=\"0x030200\"/>", i >> 8, i & 0xff);
  CHECK(contains(error_of(nccl_files::read, one_cpu(many)), "more than 65536 GPUs"));
}

TEST_CASE("a file of small elements or attributes is refused before it takes memory") {
  const auto peak_mib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss >> 10;
  };
  const auto repeated = [](std::string_view part) {
    std::string text = "<system version=\"1\"";
    text.reserve(std::size_t{48} << 20);
    while (text.size() + part.size() < std::size_t{48} << 20) text += part;
    return text;
  };
  for (const auto& [part, what] : {std::pair("><a/", "more than 2000000 elements"),
                                   std::pair(" b=''", "more than 4000000 attributes")}) {
    const std::string text = repeated(part);
    const auto before = peak_mib();
    std::string error;
    try {
      read(text);
    } catch (const atoll::Error& caught) {
      error = caught.what();
    }
    CHECK(contains(error, what));
    CHECK(peak_mib() - before < 128);
  }
}

TEST_CASE("two <gpu> below one <pci> are partitions of one GPU") {
  const std::string links = to_gpu("0000:02:00.0", 4);
  const Topology topology =
      read(one_cpu(pci("0000:01:00.0", "0x030200",
                       "<gpu dev=\"0\" sm=\"90\"/><gpu dev=\"1\" sm=\"90\">" + links + "</gpu>") +
                   gpu("0000:02:00.0", 2, to_gpu("0000:01:00.0", 4))));
  REQUIRE(topology.gpus.size() == 2);
  CHECK(topology.gpus[0].partitions == std::vector<std::string>{"dev0", "dev1"});
  CHECK(topology.gpus[1].partitions.empty());
  CHECK(island_sizes(topology) == std::vector<std::size_t>{2});
  CHECK(topology.conflicts.empty());
  CHECK(get_fact(topology.hosts[0].facts, "note.nccl xml").empty());
}

TEST_CASE("a file whose devices have no class is refused, NICs alone are read") {
  const std::string bare = one_cpu("<pci busid=\"0000:4f:00.0\" link_width=\"16\"/>");
  CHECK(contains(error_of(nccl_files::read, bare), "NCCL_TOPO_DUMP_FILE=FILE"));
  const Topology nics = read(one_cpu(pci("0000:4f:00.0", "0x020700", net("name=\"mlx5_0\""))));
  CHECK(nics.gpus.empty());
  CHECK(nics.nics.size() == 1);
}

TEST_CASE("elements that are not read are noted") {
  const Topology topology =
      read(one_cpu(gpu("0000:01:00.0", 0, "<c2c bw=\"1\" count=\"2\"/>") + "<gpu dev=\"1\"/>"));
  CHECK(topology.gpus.size() == 1);
  CHECK(topology.links.empty());
  CHECK(topology.hosts[0].gpu_links == IslandState::none);  // <c2c> leads to a Grace processor
  CHECK(get_fact(topology.hosts[0].facts, "note.nccl xml") ==
        "the file has elements that are not read: 1 <c2c> in <gpu> and 1 <gpu> in <cpu>");
}

TEST_CASE("an RDMA port without a PCI class is known by its GUID, or by udev's name and its port") {
  const Topology topology = read(one_cpu(
      net("name=\"ibp1s0\" port=\"1\" guid=\"0x9a70500003ae6d94\" gdr=\"1\"") +
      net("name=\"roceP2p1s0f1\" port=\"1\"") + net("name=\"ibp3s0\" port=\"0\" guid=\"0x0\"") +
      net("name=\"ib7\" port=\"1\" guid=\"0x9a70500003ae6d95\"")));
  std::string found;
  for (const auto& nic : topology.nics)
    found += nic.layer + ',' + std::string(get_fact(nic.facts, fact::rdma)) + ' ';
  CHECK(found == "infiniband, ethernet, , ,yes ");  // the third is IP over InfiniBand
}

// Tests of writing NCCL topology files. An export keeps everything that was imported.
#include "atoll/tooling/inspection.hpp"
#include "unit/topology/machines.hpp"
#include "unit/topology/nccl_files.hpp"

namespace {

using namespace nccl_files;
using atoll::get_fact;
using atoll::IslandState;
using atoll::Topology;
using machines::contains;
using machines::islands_of;
namespace fact = atoll::fact;

// Returns the devices of a topology as text: bus ids and NUMA nodes of GPUs and NICs, indices of
// GPUs, rates of NICs, and the number of links.
std::string devices(const Topology& topology) {
  std::string text;
  for (const atoll::TopologyGpu& gpu : topology.gpus)
    text += fmt::format("{} {} numa {} sm {}\n", gpu.busid, gpu.index, gpu.numa,
                        get_fact(gpu.facts, fact::sm));
  for (const atoll::TopologyNic& nic : topology.nics)
    text += fmt::format("{} {} numa {} {} {} {}\n", nic.name, nic.busid, nic.numa, nic.layer,
                        nic.adapter, nic.rate_gbit_s.value_or(-1));
  return text + fmt::format("{} links\n", topology.links.size());
}

Topology exported(const Topology& topology) { return read(to_nccl_xml(topology)); }

// Returns hosts with NVIDIA H100 GPUs that have bus ids, indices and compute capabilities.
Topology h100s(int hosts, int gpus) {
  Topology topology;
  for (int i = 0; i < hosts; ++i) {
    const std::string host(1, static_cast<char>('a' + i));
    machines::add_host(topology, host, gpus, IslandState::known);
  }
  for (atoll::TopologyGpu& gpu : topology.gpus) {
    gpu.facts = {{"sm", "90"}, {"pci.device", "10de:2330"}, {"pci.class", "0302"}};
    gpu.model = "NVIDIA H100 80GB HBM3";
    gpu.pci_path = "pci" + gpu.busid.substr(4, 7);
  }
  return topology;
}

}  // namespace

TEST_CASE("what was read from a file goes out again, with all that atoll does not know") {
  const std::string text =
      "<!-- of a vendor -->\n"
      "<system version=\"1\" name=\"x &quot;&amp;&lt;\">\n"
      "  <cpu numaid=\"0\" affinity=\"ff\" arch=\"x86_64\" vendor=\"AuthenticAMD\" odd=\"1\">\n"
      "    <!-- a switch -->\n"
      "    <pci busid=\"0000:0a:00.0\" class=\"0x060400\" link_speed=\"8 GT/s\" link_width=\"0\">\n"
      "      <pci busid=\"0000:0b:00.0\" class=\"0x030200\">\n"
      "        <gpu dev=\"0\" sm=\"90\" rank=\"3\" gdr=\"1\">\n"
      "          <nvlink target=\"0000:c3:00.0\" count=\"18\" tclass=\"0x068000\"/>\n"
      "          <c2c bw=\"44712\" count=\"5\"/>\n"
      "        </gpu>\n"
      "      </pci>\n"
      "      <pcilink target=\"0000:0f:00.0\"/>\n"
      "    </pci>\n"
      "    <nic>\n"
      "      <net name=\"eth0\" dev=\"0\" speed=\"-1\" latency=\"0.5\" coll=\"1\"/>\n"
      "    </nic>\n"
      "  </cpu>\n"
      "</system>\n";
  const std::string result = to_nccl_xml(read(text));
  CHECK(result == text);
}

TEST_CASE("the text suits NCCL's parser: no declaration, no tabs") {
  const std::string result = to_nccl_xml(
      read("<?xml version=\"1.0\"?>\n<system version=\"1\">\t<cpu numaid=\"0\"\n arch=\"arm64\" >"
           "</cpu></system>"));
  CHECK(result == "<system version=\"1\">\n  <cpu numaid=\"0\" arch=\"arm64\"/>\n</system>\n");
}

TEST_CASE("a file is completed by what other sources know, and not contradicted") {
  Topology topology = read(one_cpu(
      "<pci busid=\"0000:01:00.0\" class=\"0x030200\" link_speed=\"\" link_width=\"0\"/>" +
      pci("0000:02:00.0", "0x030200") + pci("0000:03:00.0", "0x020700", net("name=\"mlx5_0\"")) +
      pci("0000:04:00.0", "0x020700", net("name=\"mlx5_1\" speed=\"100000\" gdr=\"0\""))));
  topology.hosts[0].gpu_links = IslandState::known;
  for (atoll::TopologyGpu& gpu : topology.gpus) {
    gpu.index = gpu.busid == "00000000:01:00.0" ? 0 : 1;
    gpu.facts["sm"] = "80";
    gpu.facts["pci.gt_s"] = "16";
    gpu.facts["pci.width"] = "16";
  }
  machines::link(topology, "m/gpu0", "m/gpu1", 12);
  topology.nics[0].rate_gbit_s = 400;
  topology.nics[0].adapter = "946d:ae03:0050:709a";
  topology.nics[1].rate_gbit_s = 200;
  topology.nics[1].facts["gdr"] = "yes";
  const std::string result = to_nccl_xml(topology);
  CHECK(contains(result,
                 "<pci busid=\"0000:01:00.0\" class=\"0x030200\" "
                 "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">"));
  CHECK(contains(result, "<gpu dev=\"0\" sm=\"80\">"));
  CHECK(contains(result, "<nvlink target=\"0000:02:00.0\" count=\"12\" tclass=\"0x030200\"/>"));
  CHECK(contains(result, "<nvlink target=\"0000:01:00.0\" count=\"12\" tclass=\"0x030200\"/>"));
  CHECK(contains(result, "name=\"mlx5_0\" speed=\"400000\" guid=\"0x9a70500003ae6d94\""));
  CHECK(contains(result, "name=\"mlx5_1\" speed=\"100000\" gdr=\"0\""));
  CHECK(islands_of(read(result)) == "2 known nvlink 300 300; ");
}

TEST_CASE("links that a file has are not added again") {
  const std::string own =
      nvlink("0000:c3:00.0", 9, "0x068000") + nvlink("0000:c4:00.0", 9, "0x068000");
  const Topology topology =
      read(one_cpu(gpu("0000:01:00.0", 0, own) + gpu("0000:02:00.0", 1, own)));
  CHECK(topology.links.size() == 2);
  const std::string text = to_nccl_xml(topology);
  CHECK_FALSE(contains(text, "fffffff"));
  CHECK(contains(text, "target=\"0000:c4:00.0\" count=\"9\""));
}

TEST_CASE("a contradiction in a file goes out as it came in") {
  const std::string text =
      one_cpu(gpu("0000:01:00.0", 0, to_gpu("0000:02:00.0", 4)) + gpu("0000:02:00.0", 1));
  const Topology topology = read(text);
  REQUIRE(topology.conflicts.size() == 1);
  const std::string result = to_nccl_xml(topology);
  CHECK_FALSE(contains(result, "target=\"0000:01:00.0\""));
  CHECK(read(result).conflicts.size() == 1);
  // If the file lists no links for a GPU, the export adds the links that other GPUs have to this
  // GPU.
  const Topology silent = read(
      one_cpu(gpu("0000:01:00.0", 0, to_gpu("0000:02:00.0", 4)) + pci("0000:02:00.0", "0x030200")));
  CHECK(contains(to_nccl_xml(silent), "target=\"0000:01:00.0\" count=\"4\""));
}

TEST_CASE("devices that a file lacks go to their place in it") {
  Topology topology = read(one_cpu(pci("0000:0a:00.0", "0x060400", gpu("0000:0b:00.0", 0))));
  machines::add_nic(topology, "m", 400).busid = "00000000:0c:00.0";
  topology.nics.back().pci_path = "pci0000:09/00000000:09:00.0/00000000:0a:00.0/00000000:0a:01.0";
  const Topology again = exported(topology);
  REQUIRE(again.nics.size() == 1);
  CHECK(again.nics[0].pci_path == again.gpus[0].pci_path);
  CHECK(again.nics[0].layer == "infiniband");
}

TEST_CASE("a file that does not fit the topology any more is left out") {
  Topology damaged = read(one_cpu(gpu("0:1:00.0", 0)));
  damaged.documents[0].text = "<system><cpu";
  const std::string anew = to_nccl_xml(damaged);
  CHECK(contains(anew, "<gpu dev=\"0\" sm=\"90\" gdr=\"1\"/>"));
  Topology renamed = read(one_cpu(gpu("0:1:00.0", 0)));
  machines::add_host(renamed, "other");
  CHECK(read(to_nccl_xml(renamed)).hosts.size() == 2);
}

TEST_CASE("built anew: devices and islands come back") {
  const auto switched = [](Topology topology, const auto& switch_of) {
    for (const atoll::TopologyGpu& gpu : topology.gpus)
      machines::link(topology, gpu.id, switch_of(gpu.host), 18);
    return topology;
  };
  const auto own = [](const std::string& host) { return host + "/nvswitch0"; };
  const Topology hgx = switched(h100s(2, 4), own);
  const Topology rack =
      switched(h100s(3, 4), [](const std::string&) { return "rack:x/nvswitch0"; });
  Topology pairs = h100s(1, 4), board = h100s(1, 4);
  machines::link(pairs, "a/gpu0", "a/gpu1", 12);
  machines::link(pairs, "a/gpu3", "a/gpu2", 12);
  machines::join_all(board, "a", {0, 1, 2, 3}, 6);
  for (const auto& [machine, found] :
       {std::pair(hgx, "4 known nvlink 450 450; 4 known nvlink 450 450; "),
        std::pair(rack, "12 known nvlink 450 450; "),
        std::pair(pairs, "2 known nvlink 300 300; 2 known nvlink 300 300; "),
        std::pair(board, "4 known nvlink 450 150; ")}) {
    const Topology again = exported(machine);
    CHECK(again.hosts.size() == machine.hosts.size());
    CHECK(devices(again) == devices(machine));
    CHECK(islands_of(again) == found);
  }
  const std::string text = to_nccl_xml(switched(h100s(1, 2), own));
  CHECK(contains(text, "<nvlink target=\"fffffff:ff:ff.0\" count=\"18\" tclass=\"0x068000\"/>"));
  for (const char* unknown : {"rank", "host_hash", "arch"}) CHECK_FALSE(contains(text, unknown));
  // The export keeps two racks apart, so their islands stay separate.
  CHECK(find_islands(exported(switched(h100s(4, 2), [](const std::string& host) {
          return host < "c" ? "rack:x/s" : "rack:y/s";
        }))).size() == 4);
}

TEST_CASE("whether there are links: unknown, none") {
  Topology topology = h100s(1, 2);
  topology.hosts[0].gpu_links = IslandState::unknown;
  const std::string unknown = to_nccl_xml(topology);
  CHECK_FALSE(contains(unknown, "<gpu"));
  CHECK(read(unknown).hosts[0].gpu_links == IslandState::unknown);
  topology.hosts[0].gpu_links = IslandState::none;
  CHECK(exported(topology).hosts[0].gpu_links == IslandState::none);
}

TEST_CASE("a GPU of which only the bus id is known stays a GPU") {
  Topology topology;
  machines::add_host(topology, "a", 1);
  const std::string result = to_nccl_xml(topology);
  CHECK(contains(result, "<pci busid=\"0000:10:00.0\" class=\"0x03\"/>"));
  CHECK(read(result).gpus.size() == 1);
}

TEST_CASE("devices without a place, and virtual NICs, are left out") {
  Topology topology = h100s(1, 2);
  topology.gpus[1].busid.clear();
  for (const char* name : {"mlx5_0", "mlx5_1", "docker0"})
    machines::add_nic(topology, "a", 400, name);
  topology.nics[0].busid = "00000000:0c:00.0";
  topology.nics[2].is_virtual = true;
  const std::string result = to_nccl_xml(topology);
  CHECK_FALSE(contains(result, "mlx5_1"));
  CHECK_FALSE(contains(result, "docker0"));
  CHECK(read(result).gpus.size() == 1);
}

TEST_CASE("a switch as the kernel spells it becomes one bridge") {
  Topology topology = h100s(1, 2);
  const std::string above = "pci0000:09/00000000:09:01.0/00000000:0a:00.0/";
  topology.gpus[0].pci_path = above + "00000000:0b:00.0";
  topology.gpus[1].pci_path = "pci0000:08/00000000:08:01.0";
  machines::add_nic(topology, "a", 400);
  topology.nics[0].busid = "00000000:0e:00.0";
  topology.nics[0].pci_path = above + "00000000:0b:01.0";
  const Topology again = exported(topology);
  CHECK(again.gpus[0].pci_path == "pci0000:0a/00000000:0a:00.0");
  CHECK(again.nics[0].pci_path == again.gpus[0].pci_path);
  CHECK(again.gpus[1].pci_path == "pci0000:11");
  // If the paths of two GPUs meet at a bridge, the export keeps this bridge.
  topology.gpus[1].pci_path = above + "00000000:0b:00.0";
  CHECK(exported(topology).gpus[1].pci_path == "pci0000:0a/00000000:0a:00.0/00000000:0b:00.0");
  // Two functions of one PCI device do not meet at a bridge, so the bridge above them is not kept.
  topology.gpus[1].pci_path = "pci0000:08/00000000:08:01.0";
  topology.nics.push_back(topology.nics[0]);
  topology.nics[1].name = "mlx5_1";
  topology.nics[1].id = "a/mlx5_1";
  topology.nics[1].busid = "00000000:0e:00.1";
  CHECK(exported(topology).nics[0].pci_path == "pci0000:0a/00000000:0a:00.0");
  topology.gpus[1].pci_path = "nonsense/../";
  CHECK(exported(topology).gpus[1].pci_path == "pci0000:11");
}

TEST_CASE("link layers come back") {
  for (const char* layer : {"infiniband", "ethernet", "efa", "slingshot", "omni-path", ""}) {
    Topology topology = h100s(1, 1);
    machines::add_nic(topology, "a", 200);
    topology.nics[0].busid = "00000000:0c:00.0";
    topology.nics[0].layer = layer;
    CHECK_MESSAGE(exported(topology).nics[0].layer == layer, layer);
  }
}

TEST_CASE("two ports of one adapter, and an adapter without a name") {
  Topology topology = h100s(1, 1);
  for (const char* name : {"mlx4_0", "mlx4_0:2", "nic-0000:0d:00.0"})
    machines::add_nic(topology, "a", 56, name).busid = "00000000:0c:00.0";
  topology.nics.back().busid = "00000000:0d:00.0";
  std::string found;
  for (const auto& nic : exported(topology).nics)
    found += fmt::format("{} {}; ", nic.name, nic.rate_gbit_s.value_or(-1));
  CHECK(found == "mlx4_0 56; mlx4_0:2 56; nic-0000:0d:00.0 -1; ");
}

TEST_CASE("RCCL's dialect is written for AMD's GPUs") {
  Topology topology;
  machines::add_host(topology, "a", 2, IslandState::known);
  for (atoll::TopologyGpu& gpu : topology.gpus)
    gpu.facts = {{"gcn", "gfx942"}, {"pci.device", "1002:74a1"}, {"pci.class", "1200"}};
  topology.links.push_back(
      {.a = "a/gpu0", .b = "a/gpu1", .type = "xgmi", .count = 1, .gbyte_s = std::nullopt});
  const std::string result = to_nccl_xml(topology);
  CHECK(result.starts_with("<system version=\"2\">"));
  CHECK(contains(result, "<xgmi target=\"0000:11:00.0\" count=\"1\" tclass=\"0x120000\"/>"));
  CHECK(islands_of(read(result)) == islands_of(topology));
}

TEST_CASE("links to processors and to GPUs that are not there") {
  const Topology topology =
      read(one_cpu(gpu("0:1:00.0", 0, nvlink("0:9:00.0", 3, "0x068001") + to_gpu("0:8:00.0", 2)) +
                   gpu("0:2:00.0", 1)));
  Topology bare = topology;
  bare.documents.clear();
  const std::string result = to_nccl_xml(bare);
  CHECK(contains(result, "<nvlink count=\"3\" tclass=\"0x068001\"/>"));
  CHECK(contains(result, "<nvlink target=\"0000:08:00.0\" count=\"2\" tclass=\"0x03\"/>"));
  CHECK(islands_of(read(result)) == islands_of(topology));
  CHECK(read(result).links.size() == topology.links.size());
}

TEST_CASE("hosts without devices, and without anything") {
  CHECK(exported(machines::cpus(3)).hosts.size() == 3);
  const Topology one = exported(machines::cpus(1));
  REQUIRE(one.hosts.size() == 1);
  CHECK(one.gpus.empty());
  CHECK_THROWS_AS(to_nccl_xml(Topology{}), atoll::Error);
}

TEST_CASE("what cannot be read back is refused, not written") {
  Topology topology = h100s(1, 2);
  machines::link(topology, "a/gpu0", "a/nvswitch0", 1000);
  machines::link(topology, "a/gpu0", "a/gpu1", 1000);
  try {
    to_nccl_xml(topology);
    FAIL("2000 links of one GPU were written");
  } catch (const atoll::Error& error) {
    CHECK(error.code() == atoll::ErrorCode::unsupported);
    CHECK(contains(error.what(), "the number of links is not"));
  }
}

TEST_CASE("hosts that share a hash are told apart") {
  Topology topology = machines::cpus(2);
  for (atoll::TopologyHost& host : topology.hosts) host.facts["nccl.host_hash"] = "0x1";
  CHECK(exported(topology).hosts.size() == 2);
}

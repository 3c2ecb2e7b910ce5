// Tests of hwloc's XML format: old and new versions, damaged files, real files, and the export.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "facts.hpp"
#include "inspect/exporters/hwloc_devices.hpp"
#include "inspect/importers/importer.hpp"
#include "unit/hwloc_exports.hpp"

using atoll::get_fact;
using atoll::IslandState;
using atoll::Topology;
namespace fact = atoll::fact;
namespace sources = atoll::topology_sources;
using namespace hwloc_machines;

namespace {

Topology read(const std::string& text, const std::string& origin = "node7.xml") {
  return atoll::importers::hwloc_xml.read(text, origin);
}

// Expects read() to throw Error(bad_data) with a message that contains a byte offset and `what`.
void refuses(const std::string& text, const std::string& what) {
  INFO(what);
  try {
    read(text);
    FAIL("no error");
  } catch (const atoll::Error& error) {
    CHECK(error.code() == atoll::ErrorCode::bad_data);
    const std::string message = error.what();
    CHECK_MESSAGE(message.find("node7.xml: byte ") != std::string::npos, message);
    CHECK_MESSAGE(message.find(what) != std::string::npos, message);
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

XmlMachine pair_of_gpus() {
  XmlMachine machine;
  machine.devices = gpu(0x10, 0, "NVIDIA H100") + gpu(0x11, 1, "NVIDIA H100") +
                    adapter(0x40, "0207 [15b3:1021] [15b3:0041] 00", "mlx5_0", port(1, 4, "0x9"));
  machine.distances = matrix({"416", "417"}, {0, 300'000, 300'000, 0});
  return machine;
}

}  // namespace

TEST_CASE("hwloc XML: CPU sets are written and read as hwloc does") {
  for (const std::string text :
       {"0x0", "0x00000001", "0x80000000", "0x00000003,,0xffffffff", "0xff000000,0x0",
        "0x00000001,,,0x0", "0xffffffff,0xffffffff,0xffffffff"}) {
    const auto set = sources::CpuSet::parse(text);
    REQUIRE(set);
    CHECK(set->to_text() == text);
    const sources::Bitmap bitmap(hwloc_bitmap_alloc());
    REQUIRE(hwloc_bitmap_sscanf(bitmap.get(), text.c_str()) == 0);
    CHECK(set->count() == hwloc_bitmap_weight(bitmap.get()));
    for (unsigned i = 0; i < 140; ++i)
      CHECK(set->contains(i) == (hwloc_bitmap_isset(bitmap.get(), i) != 0));
  }
  CHECK(sources::CpuSet::parse("")->empty());
  CHECK(sources::CpuSet::parse("0xf...f,0x0")->count() == sources::CpuSet::most - 32);
  CHECK(sources::CpuSet::parse("0xf...f,,0x1")->count() == sources::CpuSet::most - 63);
  for (const char* text : {"0x1ffffffff", "x", "0x1,y", "-1", "0xf...fa"})
    CHECK_FALSE(sources::CpuSet::parse(text));
  CHECK_FALSE(sources::CpuSet::parse(std::string(sources::CpuSet::most / 32, ',')));
}

TEST_CASE("hwloc XML: sets of threads, joined and cut") {
  auto a = *sources::CpuSet::parse("0x00000003,0x0");
  auto b = *sources::CpuSet::parse("0x00000001");
  CHECK_FALSE(a.intersects(b));
  a |= b;
  CHECK(a.count() == 3);
  a &= b;
  CHECK(a == b);
  b.add(sources::CpuSet::most);  // add() ignores a thread number beyond the limit
  CHECK(b.count() == 1);
}

TEST_CASE("hwloc XML: is told by its first element") {
  CHECK(atoll::importers::hwloc_xml.recognises(pair_of_gpus().text()));
  CHECK(atoll::importers::hwloc_xml.recognises("<topology>"));
  CHECK_FALSE(atoll::importers::hwloc_xml.recognises("<system version=\"1\"/>"));
  CHECK_FALSE(atoll::importers::hwloc_xml.recognises("a <topology>"));
}

TEST_CASE("hwloc XML: the host is called by the file's contents, else after the file") {
  XmlMachine machine = pair_of_gpus();
  CHECK(read(machine.text(), "dumps/node7.xml").hosts[0].id == "node7");
  const std::string named = replaced(machine.text(), "<info name=\"hwlocVersion\"",
                                     info("HostName", "n &amp; 1") + "<info name=\"hwlocVersion\"");
  CHECK(read(named).hosts[0].id == "n & 1");
  CHECK(read(named).gpus[0].id == "n & 1/gpu0");
}

TEST_CASE("hwloc XML: only threads that are allowed may be used") {
  const std::string text =
      replaced(pair_of_gpus().text(), "allowed_cpuset=\"0x3\"", "allowed_cpuset=\"0x2\"");
  const Topology topology = read(text);
  CHECK(topology.hosts[0].threads == 1);
  CHECK(topology.hosts[0].cores == 1);
  CHECK(topology.hosts[0].host_threads == 2);
  CHECK(topology.to_json() == read_with_libhwloc(text, "node7").to_json());
}

TEST_CASE("hwloc XML: version 1") {
  const Topology topology = read(version_1("Package"));
  CHECK(topology.hosts[0].packages == 1);
  CHECK(topology.hosts[0].numa_nodes == 2);
  CHECK(topology.hosts[0].memory_bytes == 2048);
  REQUIRE(topology.gpus.size() == 2);
  CHECK(topology.gpus[1].index == 1);
  CHECK(topology.gpus[1].numa == 1);
  CHECK(topology.gpus[1].pci_path == "pci0000:10");
  for (const char* socket : {"Package", "Socket"})
    CHECK(read(version_1(socket)).to_json() ==
          read_with_libhwloc(version_1(socket), "node7").to_json());
}

TEST_CASE("hwloc XML: version 1 without a NUMA node, and a core that has no number") {
  const std::string text = fmt::format(
      "<topology>\n<object type=\"Machine\" os_index=\"0\" {} local_memory=\"4096\">\n"
      "<object type=\"Core\" {}><object type=\"PU\" os_index=\"0\" {}/></object>\n"
      "</object>\n</topology>\n",
      R"(cpuset="0x1" complete_cpuset="0x1")", R"(cpuset="0x1" complete_cpuset="0x1")",
      R"(cpuset="0x1" complete_cpuset="0x1")");
  const Topology topology = read(text);
  CHECK(topology.hosts[0].numa_nodes == 1);
  CHECK(topology.hosts[0].memory_bytes == 4096);
  CHECK(topology.to_json() == read_with_libhwloc(text, "node7").to_json());
}

TEST_CASE("hwloc XML: version 3 has bits for the kinds of OS devices, which libhwloc 2 refuses") {
  constexpr int gpu_and_coprocessor = 0x0c, network = 0x10, network_and_openfabrics = 0x30;
  XmlMachine machine;
  machine.devices = pci(0x10, h100, os(400, "nvml0", gpu_and_coprocessor)) +
                    pci(0x40, "0207 [15b3:1021] [15b3:0041] 00",
                        os(401, "mlx5_0", network_and_openfabrics) + os(402, "ib0", network));
  const std::string text =
      replaced(machine.text(), "<topology version=\"2.0\">",
               "<topology version=\"3.0\">" + info("HostName", "v3") + info("OSRelease", "6.1"));
  const Topology topology = read(text);
  CHECK(topology.hosts[0].id == "v3");
  CHECK(get_fact(topology.hosts[0].facts, fact::kernel_release) == "6.1");
  CHECK(topology.gpus.size() == 1);
  REQUIRE(topology.nics.size() == 1);
  CHECK(topology.nics[0].name == "mlx5_0");
}

TEST_CASE("hwloc XML: the name of an RDMA device shows its link layer where nothing else does") {
  constexpr int openfabrics = 3;
  XmlMachine machine;
  machine.devices = os(401, "ibp64s0", openfabrics) + os(402, "ib7", openfabrics);
  const Topology topology = read(machine.text());
  REQUIRE(topology.nics.size() == 2);
  for (const auto& nic : topology.nics) {
    const bool is_named = nic.name == "ibp64s0";
    CHECK(nic.layer == (is_named ? "infiniband" : ""));
    CHECK(get_fact(nic.facts, fact::rdma) == (is_named ? "" : "yes"));
  }
}

TEST_CASE("hwloc XML: what nobody knows is passed over, what is missing too") {
  const std::string text = pair_of_gpus().text();
  const std::string known = read(text).to_json();
  const std::string more =
      replaced(text, "</topology>",
               "<distances2 type=\"PU\" nbobjs=\"x\" name=\"other\"/><future/>text</topology>");
  CHECK(read(more).to_json() == known);
  const std::string strange = replaced(text, "<object type=\"Package\"",
                                       "<userdata>x</userdata><object type=\"Package\" new=\"1\"");
  CHECK(read(strange).to_json() == known);
  const Topology bare =
      read("<topology version=\"2.0\"><object type=\"Machine\" cpuset=\"0x7\"/></topology>");
  CHECK(bare.hosts[0].threads == 3);
  CHECK(bare.gpus.empty());
  // PCI devices without an address and devices without a PCI type are skipped.
  const std::string empty_pci = replaced(text, "</object>\n<object type=\"PCIDev\"",
                                         "</object><object type=\"PCIDev\"/>"
                                         "<object type=\"PCIDev\" pci_busid=\"0:1:0.0\"/>\n"
                                         "<object type=\"PCIDev\"");
  CHECK(read(empty_pci).to_json() == known);
}

TEST_CASE("hwloc XML: damage is an error that names the byte") {
  const std::string text = pair_of_gpus().text();
  refuses("", "");
  refuses("<topology>", "");
  refuses(text.substr(0, text.size() / 2), "XML");
  refuses("<topology/>", "contains no <object>");
  refuses("<topology><object type=\"Machine\"/></topology>", "no cpuset");
  refuses(replaced(text, "type=\"Package\"", ""), "has no type");
  refuses(replaced(text, "cpuset=\"0x3\"", "cpuset=\"0xq\""), "cpuset");
  refuses(replaced(text, "cpuset=\"0x3\"", "cpuset=\"" + std::string(5000, ',') + "\""),
          "16384 threads");
  refuses(replaced(text, "0000:10:00.0", "0000:10"), "pci_busid");
  refuses(replaced(text, "0000:10:00.0", "0000:110:00.0"), "pci_busid");
  refuses(replaced(text, "0302 [10de:2330]", "0302 [10de2330]"), "pci_type");
  refuses(replaced(text, "0000:[00-ff]", "0000:[00-100]"), "bridge_pci");
}

TEST_CASE("hwloc XML: a damaged matrix is an error that names the byte") {
  XmlMachine machine = pair_of_gpus();
  const auto with = [&](const std::string& distances) {
    machine.distances = distances;
    return machine.text();
  };
  const std::string good = matrix({"416", "417"}, {0, 1, 1, 0});
  read(with(good));
  refuses(with(matrix({"416", "999"}, {0, 1, 1, 0})), "OSDev 999, which does not exist");
  refuses(with(matrix({"416", "417"}, {0, 1, 1})), "2 indexes and 3 values, but nbobjs is 2");
  refuses(with(matrix({"416", "417"}, {0, 1, 1, 0, 0})), "more values");
  refuses(with(replaced(good, "416 417", "416 417 416")), "more indexes");
  refuses(with(replaced(good, "416 417", "416")), "1 indexes");
  refuses(with(replaced(good, "416 417", "416 x")), "index of a matrix is not a number");
  refuses(with(replaced(good, "0 1 1 0", "0 1 -1 0")), "value of a matrix is not a number");
  refuses(with(replaced(good, "nbobjs=\"2\"", "nbobjs=\"4294967298\"")), "nbobjs");
  refuses(with(replaced(good, "nbobjs=\"2\"", "")), "nbobjs");
}

TEST_CASE("hwloc XML: a machine that cannot be") {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "<object type=\"Group\">";
  refuses(replaced(pair_of_gpus().text(), "<object type=\"Package\"",
                   deep + "<object type=\"Package\""),
          "");
  XmlMachine machine;
  for (int i = 0; i < 600; ++i)
    machine.devices += fmt::format(
        "<object type=\"PCIDev\" pci_busid=\"{:x}:00:00.0\" pci_type=\"0302 [10de:2330]\"/>", i);
  refuses(machine.text(), "more than 512 GPUs");
  machine.devices.clear();
  for (int i = 0; i < 1100; ++i) machine.os_devices += os(100 + i, fmt::format("mlx5_{}", i), 3);
  refuses(machine.text(), "more than 1024 NICs");
  for (int i = 0; i < 1100; ++i) machine.parts += "<object type=\"Package\"/>";
  refuses(machine.text(), "more than 1024 packages");
}

TEST_CASE("hwloc XML: cut or changed anywhere, it is read or refused") {
  const std::string text = pair_of_gpus().text();
  int readable = 0;
  const auto try_it = [&](const std::string& damaged) {
    try {
      const Topology topology = read(damaged);
      CHECK(topology.hosts.size() == 1);
      ++readable;
    } catch (const atoll::Error& error) {
      CHECK(error.code() == atoll::ErrorCode::bad_data);
    }
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    try_it(text.substr(0, i));
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 0x15);
    try_it(changed);
  }
  CHECK(readable > 0);
}

// Reads files of real machines with libhwloc and with the importer. Both results must be equal.
// libhwloc gets the host's id from the importer's result, because a file may have no host name.
TEST_CASE("hwloc XML: real files are read as libhwloc reads them") {
  const std::filesystem::path folder = std::filesystem::path(ATOLL_TEST_SHARED_DIR) / "topologies";
  if (!std::filesystem::is_directory(folder)) {
    MESSAGE("skipped: there is no folder " << folder.string());
    return;
  }
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("hwloc_")) continue;
    INFO(name);
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const Topology topology = read(text, entry.path().string());
    CHECK(topology.to_json() == read_with_libhwloc(text, topology.hosts.at(0).id).to_json());
    ++files;
  }
  CHECK(files > 0);
}

// Tests of the export to hwloc's XML.

TEST_CASE("hwloc XML export: GPUs on switches") {
  Topology topology = board(8, "NVIDIA H100 80GB HBM3", "10de:2330");
  for (int i = 0; i < 8; ++i)
    for (int device = 0; device < 4; ++device)
      machines::link(topology, machines::gpu("h", i), fmt::format("h/nvswitch{}", device),
                     device < 2 ? 5 : 4);
  const auto written = check_export(topology);
  CHECK(find_islands(topology).size() == 1);
  CHECK(says(written, "bus ids of 4 NVSwitches"));
  CHECK(says(written, "the rate of h/mlx5_0"));
  CHECK_FALSE(says(written, "NUMA node or package"));
  CHECK_FALSE(says(written, "the link layer"));
}

TEST_CASE("hwloc XML export: boards without a switch, pairs, and links of processors") {
  Topology four = board(4, "NVIDIA H100 80GB HBM3", "10de:2330");
  machines::join_all(four, "h", {0, 1, 2, 3}, 6);
  check_export(four);
  Topology pairs = board(4, "NVIDIA A30", "10de:20b7");
  machines::join_all(pairs, "h", {0, 1});
  machines::join_all(pairs, "h", {2, 3});
  check_export(pairs);
  CHECK(find_islands(pairs).size() == 2);
  Topology power = board(4, "Tesla V100-SXM2-16GB", "10de:1db1");
  machines::join_all(power, "h", {0, 1}, 3);
  power.links.push_back(
      {.a = "h/gpu0", .b = "h/package0", .type = "nvlink_cpu", .count = 3, .gbyte_s = 75});
  check_export(power);
}

TEST_CASE("hwloc XML export: AMD") {
  Topology topology = board(4, "AMD Instinct MI300X", "1002:74a1");
  for (auto& one : topology.gpus) one.uuid = "ab" + one.id.substr(one.id.size() - 1);
  for (int i = 0; i < 4; ++i)
    for (int j = i + 1; j < 4; ++j)
      topology.links.push_back({.a = machines::gpu("h", i),
                                .b = machines::gpu("h", j),
                                .type = "xgmi",
                                .gbyte_s = std::nullopt});
  CHECK_FALSE(says(check_export(topology), "xGMI"));
  topology.links[0].gbyte_s = 64;
  CHECK(says(to_hwloc_xml(topology), "rates of xGMI links"));
}

TEST_CASE("hwloc XML export: none and unknown stay what they are") {
  for (const IslandState state : {IslandState::none, IslandState::unknown}) {
    Topology topology = board(2, "NVIDIA A100-PCIE-40GB", "10de:20f1");
    topology.hosts[0].gpu_links = state;
    check_export(topology);
    CHECK(read(to_hwloc_xml(topology).text).hosts[0].gpu_links == state);
  }
  Topology one = board(2, "NVIDIA A100-PCIE-40GB", "10de:20f1");
  one.gpus.pop_back();
  one.hosts[0].gpu_links = IslandState::none;
  CHECK(says(to_hwloc_xml(one), "the information that the GPU has no links"));
}

TEST_CASE("hwloc XML export: links whose rate is unknown are left out, never made up") {
  Topology topology = board(2, "NVIDIA A100-PCIE-40GB", "10de:20f1");
  topology.links.push_back(
      {.a = "h/gpu0", .b = "h/gpu1", .type = "nvlink", .count = 4, .gbyte_s = std::nullopt});
  const auto written = to_hwloc_xml(topology);
  CHECK(says(written, "NVLink"));
  CHECK(read(written.text).hosts[0].gpu_links == IslandState::unknown);
  CHECK(written.text.find("NVLinkBandwidth") == std::string::npos);
}

TEST_CASE("hwloc XML export: devices of which little is known") {
  Topology topology;
  machines::add_host(topology, "h", 2);
  topology.gpus[0].busid.clear();
  topology.gpus[0].model = "a & b <c> \"d\"\n";
  topology.gpus[1].pci_path = "pci0000:10/elsewhere";
  topology.gpus[1].index = -1;
  machines::add_nic(topology, "h", 400);
  const auto written = to_hwloc_xml(topology);
  const Topology again = read(written.text);
  CHECK(again.to_json() == read_with_libhwloc(written.text, "h").to_json());
  REQUIRE(again.gpus.size() == 2);
  // GPUs are sorted by bus id. GPUs without a bus id come last.
  CHECK(again.gpus[0].busid == topology.gpus[1].busid);
  // No such fact, because the PCI vendor is unknown.
  CHECK_FALSE(again.gpus[0].facts.contains(fact::pci_device));
  CHECK(again.gpus[1].model == "a & b <c> \"d\"?");
  CHECK(says(written, "the PCI path of h/gpu1"));
  CHECK(says(written, "the numbers of GPUs"));
  REQUIRE(again.nics.size() == 1);
  CHECK(again.nics[0].state == "active");
  // The export loses the link layer, because the NIC has no PCI device.
  CHECK(says(written, "the link layer of h/mlx5_0"));
}

TEST_CASE("hwloc XML export: more packages than NUMA nodes, and ids with gaps") {
  Topology topology = board(4, "NVIDIA H100 80GB HBM3", "10de:2330");
  topology.hosts[0].numa_nodes = 1;
  for (auto& one : topology.gpus) one.numa = 0;
  for (auto& nic : topology.nics) nic.numa = 0;
  check_export(topology);
  topology.hosts[0].numa_nodes = 2;
  for (std::size_t i = 0; i < 4; ++i) {
    topology.gpus[i].package = topology.nics[i].package = i < 2 ? 0 : 8;
    topology.gpus[i].numa = topology.nics[i].numa = i < 2 ? 0 : 250;
  }
  check_export(topology);
}

TEST_CASE("hwloc XML export: one root complex for devices near several nodes, as clouds have it") {
  Topology topology = board(4, "NVIDIA H100 80GB HBM3", "10de:2330");
  for (std::size_t i = 0; i < 4; ++i)
    topology.gpus[i].pci_path = topology.nics[i].pci_path =
        fmt::format("pciffff:ff/0000ffff:ff:{:02x}.0", i + 1);
  CHECK_FALSE(says(check_export(topology), "NUMA node or package"));
}

TEST_CASE("hwloc XML export: the switches of a rack") {
  Topology topology = board(2, "NVIDIA GB200", "10de:2941");
  for (int i = 0; i < 2; ++i) machines::link(topology, machines::gpu("h", i), "rack:7", 18, 50);
  const auto written = to_hwloc_xml(topology);
  CHECK(says(written, "that rack:7 also connects other hosts"));
  const auto islands = find_islands(read(written.text));
  REQUIRE(islands.size() == 1);
  CHECK(islands[0].gpu_gbyte_s == 900);
}

TEST_CASE("hwloc XML export: a second port, and adapters of other fabrics") {
  Topology topology = board(4, "NVIDIA H100 80GB HBM3", "10de:2330");
  atoll::TopologyNic port = topology.nics[3];
  port.id += ":2";
  port.name += ":2";
  port.state = "init";
  topology.nics.push_back(port);
  topology.nics[0].layer = "slingshot";
  topology.nics[0].adapter.clear();
  topology.nics[0].facts.clear();
  topology.nics[0].state.clear();
  topology.nics[0].name = "cxi0";
  topology.nics[0].id = "h/cxi0";
  topology.nics[1].layer = "efa";
  topology.nics[1].facts["pci.device"] = "1d0f:efa1";
  topology.nics[2].layer = "omni-path";
  topology.nics[2].name = "hfi1_0";
  topology.nics[2].id = "h/hfi1_0";
  CHECK_FALSE(says(check_export(topology), "the link layer"));
}

TEST_CASE("hwloc XML export: one host, which may be this one") {
  Topology here = Topology::discover_local();
  // Interfaces without RDMA are written to the file, but the reader of hwloc's XML does not turn
  // them into NICs.
  std::erase_if(here.nics, [](const atoll::TopologyNic& nic) {
    return nic.layer != "slingshot" && !is_openfabrics(nic);
  });
  check_export(here);
  const Topology cluster = machines::hgx(3);
  CHECK_THROWS_WITH_AS(to_hwloc_xml(cluster), doctest::Contains("export one at a time"),
                       atoll::Error);
  CHECK_THROWS_AS(to_hwloc_xml(Topology()), atoll::Error);
  Topology large = machines::cpus(1);
  large.hosts[0].host_threads = 1'000'000;
  CHECK_THROWS_WITH_AS(to_hwloc_xml(large), doctest::Contains("16384"), atoll::Error);
}

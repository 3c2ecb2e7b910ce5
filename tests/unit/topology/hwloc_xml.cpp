// Tests of hwloc's XML format: old and new versions, damaged files, and real files.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "facts.hpp"
#include "inspect/importers/importer.hpp"
#include "unit/hwloc_machines.hpp"

using atoll::get_fact;
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

TEST_CASE("hwloc XML: CPU sets are read as hwloc does") {
  for (const std::string text :
       {"0x0", "0x00000001", "0x80000000", "0x00000003,,0xffffffff", "0xff000000,0x0",
        "0x00000001,,,0x0", "0xffffffff,0xffffffff,0xffffffff"}) {
    const auto set = sources::CpuSet::parse(text);
    REQUIRE(set);
    const sources::Bitmap bitmap(hwloc_bitmap_alloc());
    REQUIRE(hwloc_bitmap_sscanf(bitmap.get(), text.c_str()) == 0);
    CHECK(set->count() == hwloc_bitmap_weight(bitmap.get()));
    for (unsigned i = 0; i < 140; ++i)
      CHECK(set->contains(i) == (hwloc_bitmap_isset(bitmap.get(), i) != 0));
  }
  CHECK(sources::CpuSet::parse("")->empty());
  CHECK(sources::CpuSet::parse("0xf...f,0x0")->count() == sources::CpuSet::most - 32);
  CHECK(sources::CpuSet::parse("0xf...f,,0x1")->count() == sources::CpuSet::most - 63);
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
  CHECK(std::pair(topology.gpus[1].index, topology.gpus[1].numa) == std::pair(1, 1));
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

// The fuzzer hwloc_xml shows that every other damage is an error as well.
TEST_CASE("hwloc XML: damage is an error that names the byte") {
  XmlMachine machine = pair_of_gpus();
  const std::string text = machine.text();
  refuses(text.substr(0, text.size() / 2), "XML");
  refuses("<topology/>", "contains no <object>");
  refuses("<topology><object type=\"Machine\"/></topology>", "no cpuset");
  refuses(replaced(text, "type=\"Package\"", ""), "has no type");
  refuses(replaced(text, "cpuset=\"0x3\"", "cpuset=\"0xq\""), "cpuset");
  refuses(replaced(text, "cpuset=\"0x3\"", "cpuset=\"" + std::string(5000, ',') + "\""),
          "16384 threads");
  refuses(replaced(text, "0000:10:00.0", "0000:10"), "pci_busid");
  refuses(replaced(text, "0302 [10de:2330]", "0302 [10de2330]"), "pci_type");
  refuses(replaced(text, "0000:[00-ff]", "0000:[00-100]"), "bridge_pci");

  const auto with = [&](const std::string& distances) {
    machine.distances = distances;
    return machine.text();
  };
  const std::string good = matrix({"416", "417"}, {0, 1, 1, 0});
  refuses(with(matrix({"416", "999"}, {0, 1, 1, 0})), "OSDev 999, which does not exist");
  refuses(with(matrix({"416", "417"}, {0, 1, 1})), "2 indexes and 3 values, but nbobjs is 2");
  refuses(with(matrix({"416", "417"}, {0, 1, 1, 0, 0})), "more values");
  refuses(with(replaced(good, "0 1 1 0", "0 1 -1 0")), "value of a matrix is not a number");
  refuses(with(replaced(good, "nbobjs=\"2\"", "nbobjs=\"4294967298\"")), "nbobjs");
}

TEST_CASE("hwloc XML: a machine that cannot be") {
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

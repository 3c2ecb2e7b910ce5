// Builds small hwloc XML files by hand for tests, and reads them with libhwloc.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"
#include "sources/hwloc_loaded.hpp"
#include "sources/hwloc_machine.hpp"

namespace hwloc_machines {

// Reads hwloc XML with libhwloc. The host gets the id `id`.
inline atoll::Topology read_with_libhwloc(const std::string& text, const std::string& id) {
  hwloc_topology_t raw = nullptr;
  REQUIRE(hwloc_topology_init(&raw) == 0);
  const atoll::topology_sources::HwlocTopology hwloc(raw);
  REQUIRE(hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0);
  REQUIRE(hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0);
  REQUIRE(hwloc_topology_set_xmlbuffer(raw, text.c_str(), static_cast<int>(text.size() + 1)) == 0);
  REQUIRE(hwloc_topology_load(raw) == 0);
  atoll::Topology topology;
  atoll::TopologyHost host;
  host.id = host.name = id;
  atoll::topology_sources::add_host(
      atoll::topology_sources::describe(raw, hwloc_topology_get_allowed_cpuset(raw)), host,
      topology);
  return topology;
}

// Returns the XML attributes of an object that is near these threads and NUMA nodes, which are
// given as hexadecimal masks.
inline std::string sets(std::string_view cpus, std::string_view nodes = "1") {
  return fmt::format(
      R"(cpuset="0x{0}" complete_cpuset="0x{0}" nodeset="0x{1}" complete_nodeset="0x{1}")", cpus,
      nodes);
}

inline std::string info(std::string_view name, std::string_view value) {
  return fmt::format(R"(<info name="{}" value="{}"/>)", name, value);
}

// Returns the cores `first` to `end` - 1 as XML, with one thread each.
inline std::string cores(int first, int end, std::string_view nodes = "1") {
  std::string text;
  for (int i = first; i < end; ++i) {
    const std::string own =
        fmt::format(R"(os_index="{}" {})", i, sets(fmt::format("{:x}", 1 << i), nodes));
    text += fmt::format(
        "<object type=\"Core\" {} gp_index=\"{}\"><object type=\"PU\" {} gp_index=\"{}\"/>"
        "</object>\n",
        own, 20 + i, own, 40 + i);
  }
  return text;
}

inline std::string node(int number, std::string_view cpus, std::string_view attributes = "") {
  return fmt::format(
      R"(<object type="NUMANode" os_index="{}" {} gp_index="{}" local_memory="1073741824" {}/>)"
      "\n",
      number, sets(cpus, fmt::format("{:x}", 1 << number)), 10 + number, attributes);
}

// A machine with one package of 2 single-threaded cores. `devices` are below the package's host
// bridge.
struct XmlMachine {
  std::string version = "2.12.0";  // version of hwloc that wrote the file
  std::string devices = {};
  std::string distances = {};
  std::string os_devices = {};  // OS devices below the machine object
  // If not empty, replaces everything below the machine object, including threads and NUMA nodes.
  std::string parts = {};
  std::string cpus = "3", nodes = "1";

  std::string text() const {
    const std::string package = fmt::format(
        R"(<object type="Package" os_index="0" {} gp_index="2">
{}{}</object>
<object type="Bridge" gp_index="5" bridge_type="0-1" depth="0" bridge_pci="0000:[00-ff]">
{}</object>
{})",
        sets("3"), node(0, "3"), cores(0, 2), devices, os_devices);
    return fmt::format(
        R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
<object type="Machine" os_index="0" {} allowed_cpuset="0x{}" allowed_nodeset="0x{}" gp_index="1">
{}
{}
</object>
{}</topology>
)",
        sets(cpus, nodes), cpus, nodes, info("hwlocVersion", version),
        parts.empty() ? package : parts, distances);
  }
};

// Returns a PCI device on bus `number`. Its gp_index is 100 + number.
inline std::string pci(int number, const std::string& type, const std::string& inner,
                       const std::string& attributes = R"(pci_link_speed="0.0")") {
  return fmt::format(
      "<object type=\"PCIDev\" gp_index=\"{}\" pci_busid=\"0000:{:02x}:00.0\" pci_type=\"{}\" {}>"
      "{}</object>\n",
      100 + number, number, type, attributes, inner);
}

// Returns an OS device. `kind` is 1 for a GPU, 2 for a network, 3 for OpenFabrics, and 5 for a
// coprocessor.
inline std::string os(int id, const std::string& name, int kind, const std::string& infos = "",
                      const std::string& attributes = "") {
  return fmt::format(
      R"(<object type="OSDev" gp_index="{}" name="{}" {} osdev_type="{}">{}</object>)", id, name,
      attributes, kind, infos);
}

inline const std::string h100 = "0302 [10de:2330] [10de:16c1] a1";
inline const std::string mi300 = "1200 [1002:74a1] [1002:74a1] 00";

// Returns a GPU on bus `number` that NVML shows. The gp_index of the GPU's OS device is 400 +
// number.
inline std::string gpu(int number, int index, const std::string& model) {
  return pci(number, h100,
             os(400 + number, fmt::format("nvml{}", index), 1,
                info("GPUModel", model) + info("NVIDIAUUID", fmt::format("GPU-{}a", index)),
                R"(subtype="NVML")"));
}

// Returns an AMD GPU on bus `number` that ROCm SMI shows.
inline std::string amd(int number, int index, const std::string& infos = "") {
  return pci(number, mi300,
             os(400 + number, fmt::format("rsmi{}", index), 1,
                info("GPUModel", "AMD Instinct MI300X") + infos, R"(subtype="RSMI")"));
}

// Returns an OpenFabrics adapter on PCI bus `number`.
inline std::string adapter(int number, const std::string& type, const std::string& name,
                           const std::string& infos) {
  return pci(number, type, os(400 + number, name, 3, infos));
}

inline std::string port(int number, int state, const std::string& lid = "") {
  return info(fmt::format("Port{}State", number), std::to_string(state)) +
         (lid.empty() ? "" : info(fmt::format("Port{}LID", number), lid));
}

inline std::string matrix(const std::vector<std::string>& objects, const std::vector<int>& values,
                          const std::string& name = "NVLinkBandwidth") {
  const std::string indexes = fmt::format("{} ", fmt::join(objects, " "));
  const std::string cells = fmt::format("{} ", fmt::join(values, " "));
  const bool same_type = objects[0].find(':') == std::string::npos;
  return fmt::format(
      R"(<distances2{0} {1}nbobjs="{2}" kind="{3}" name="{8}"{4}>
<indexes length="{5}">{6}</indexes>
<u64values length="{7}">{9}</u64values>
</distances2{0}>
)",
      same_type ? "" : "hetero", same_type ? R"(type="OSDev" )" : "", objects.size(),
      same_type ? 9 : 25, same_type ? R"( indexing="gp")" : "", indexes.size(), indexes,
      cells.size(), name, cells);
}

// Returns a machine with two packages, each with two NUMA nodes of one core. The four elements of
// `devices` are devices near package 0, near the second node of package 0, near package 1, and
// below the machine object.
inline XmlMachine packages(const std::array<std::string, 4>& devices) {
  XmlMachine machine;
  machine.cpus = "f";
  machine.nodes = "f";
  const auto group = [](int number, const std::string& inner) {
    const std::string mask = fmt::format("{:x}", 1 << number);
    return fmt::format(
        "<object type=\"Group\" {} gp_index=\"{}\" kind=\"1001\" subkind=\"0\">\n"
        "{}{}{}</object>\n",
        sets(mask, mask), 30 + number, node(number, mask), cores(number, number + 1, mask), inner);
  };
  const auto package = [](int number, const std::string& mask, const std::string& inner) {
    return fmt::format(
        "<object type=\"Package\" os_index=\"{}\" {} gp_index=\"{}\">\n{}</object>\n", number,
        sets(mask, mask), 2 + number, inner);
  };
  machine.parts = package(0, "3", group(0, "") + group(1, devices[1]) + devices[0]) +
                  package(8, "c", group(2, "") + group(3, "") + devices[2]) + devices[3];
  return machine;
}

// Returns a machine as hwloc 1 writes it: one socket with two NUMA nodes, each with a core and a
// GPU.
inline std::string version_1(const std::string& socket) {
  std::string node;
  for (int i = 0; i < 2; ++i) {
    const std::string set = sets(fmt::format("{:x}", 1 << i), fmt::format("{:x}", 1 << i));
    node += fmt::format(
        "<object type=\"NUMANode\" os_index=\"{0}\" {1} local_memory=\"1024\">"
        "<page_type size=\"4096\" count=\"1\"/>"
        "<object type=\"Core\" os_index=\"{0}\" {1}><object type=\"PU\" os_index=\"{0}\" {1}/>"
        "</object>"
        "<object type=\"Bridge\" os_index=\"{0}\" bridge_type=\"0-1\" depth=\"0\" "
        "bridge_pci=\"0000:[{0}0-{0}1]\"><object type=\"PCIDev\" os_index=\"1\" "
        "pci_busid=\"0000:{0}0:00.0\" pci_type=\"0302 [10de:2330] [10de:16c1] a1\" "
        "pci_link_speed=\"0.000000\"><object type=\"OSDev\" name=\"cuda{0}\" osdev_type=\"5\"/>"
        "</object></object></object>",
        i, set);
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc.dtd\">\n"
      "<topology><object type=\"Machine\" os_index=\"0\" {0} online_cpuset=\"0x3\" "
      "allowed_cpuset=\"0x3\" allowed_nodeset=\"0x3\">"
      "<distances nbobjs=\"2\" relative_depth=\"1\" latency_base=\"10.000000\">"
      "<latency value=\"1.0\"/><latency value=\"2.0\"/><latency value=\"2.0\"/>"
      "<latency value=\"1.0\"/></distances>"
      "<info name=\"hwlocVersion\" value=\"1.11.3\"/>"
      "<object type=\"{2}\" os_index=\"0\" {0}>{1}</object></object></topology>\n",
      sets("3", "3"), node, socket);
}

}  // namespace hwloc_machines

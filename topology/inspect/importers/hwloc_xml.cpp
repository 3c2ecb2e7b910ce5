// Imports hwloc's XML, versions 1 to 3. libhwloc is not used, because its importer ends the process
// when it reads some damaged files. hwloc.dtd and hwloc2.dtd in hwloc's source document the format.
//
// <topology version="2.0"> contains nested <object>s, then matrices of links. An object with a
// `cpuset` is a place (machine, package, NUMA node, core); bridges, PCI devices and OS devices are
// below places. Files of version 1 have no version attribute and no matrices, and their NUMA nodes
// contain the objects near them. In version 3, the type of an OS device is a set of bits.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "inspect/importers/importer.hpp"
#include "inspect/importers/xml_document.hpp"
#include "parse_number.hpp"
#include "sources/hwloc_machine.hpp"

namespace atoll_v1::atoll::importers {

using namespace topology_sources;
namespace {

constexpr std::string_view blanks = " \t\r\n";
constexpr int most_number = 1'000'000;  // upper bound of the os_index of packages and NUMA nodes

class XmlReader {
 public:
  XmlReader(const XmlDocument& document, std::string_view origin) : document_(document) {
    machine_.origin = origin;
  }

  HwlocMachine read() {
    const pugi::xml_node topology = document_.root("topology");
    const pugi::xml_node root = topology.child("object");
    if (!root) document_.fail(topology, "the <topology> contains no <object>");
    is_version_3_ = std::string_view(topology.attribute("version").value()).starts_with('3');
    read_infos(topology);
    read_infos(root);
    const auto cpus = set_of(root, "cpuset");
    if (!cpus) document_.fail(root, "the machine has no cpuset");
    machine_.usable = set_of(root, "allowed_cpuset").value_or(*cpus);
    visit(root, {});
    if (machine_.thread_count == 0) machine_.threads = *cpus;
    // Files of version 1 omit the NUMA node if the machine has only one, so it is added here.
    if (machine_.nodes.empty())
      machine_.nodes.push_back({.number = 0, .cpus = *cpus, .memory_bytes = memory_of(root)});
    for (const pugi::xml_node node : topology.children()) {
      const std::string_view tag = node.name();
      const std::string_view name = node.attribute("name").value();
      if ((tag == "distances2" || tag == "distances2hetero") &&
          (name == nvlink_matrix || name == xgmi_matrix))
        read_matrix(node);
    }
    return std::move(machine_);
  }

 private:
  struct Place {
    CpuSet cpus;
    // Position of `cpus` in HwlocMachine::localities. Empty until the importer reads a device near
    // these hardware threads.
    std::optional<std::size_t> number = {};
  };

  // The properties that an object inherits from the objects above it.
  struct Above {
    Place* place = nullptr;
    std::optional<std::size_t> pci = {};
    std::string path = {};  // PCI path of the bridges above the object
  };

  static std::string info_of(pugi::xml_node object, const char* key) {
    return object.find_child_by_attribute("info", "name", key).attribute("value").value();
  }

  void read_infos(pugi::xml_node object) {
    const auto take = [&](const char* key, std::string& value) {
      if (value.empty()) value = info_of(object, key);
    };
    take("HostName", machine_.host_name);
    take("hwlocVersion", machine_.version);
    take("OSRelease", machine_.kernel);
    take("DMIProductName", machine_.product);
    take("DMIChassisAssetTag", machine_.asset_tag);
  }

  // Reads an object and everything below it. Recursion is safe, because XmlDocument limits the
  // depth of documents.
  void visit(pugi::xml_node object, Above above) {
    if (!object.attribute("type")) document_.fail(object, "the <object> has no type");
    const std::string_view type = object.attribute("type").value();
    Place own;
    if (type == "Bridge") {
      read_bridge(object, above);
    } else if (type == "PCIDev") {
      read_pci(object, above);
    } else if (type == "OSDev") {
      read_os(object, above);
    } else {
      own.cpus = set_of(object, "cpuset").value_or(CpuSet());
      read_part(object, type, own.cpus);
      if (!own.cpus.empty()) above.place = &own;
    }
    for (const pugi::xml_node child : object.children("object")) visit(child, above);
  }

  std::optional<CpuSet> set_of(pugi::xml_node object, const char* attribute) const {
    const pugi::xml_attribute text = object.attribute(attribute);
    if (!text) return std::nullopt;
    auto set = CpuSet::parse(text.value());
    if (!set)
      document_.fail(object, fmt::format("the attribute {} is not a set of at most {} threads",
                                         attribute, CpuSet::most));
    return set;
  }

  static std::uint64_t memory_of(pugi::xml_node object) {
    const auto bytes = XmlDocument::integer(object, "local_memory");
    return bytes && *bytes > 0 ? static_cast<std::uint64_t>(*bytes) : 0;
  }

  static int number_of(pugi::xml_node object) {
    const auto number = XmlDocument::integer(object, "os_index");
    return number && *number >= 0 && *number < most_number ? static_cast<int>(*number) : -1;
  }

  void read_part(pugi::xml_node object, std::string_view type, const CpuSet& cpus) {
    if (machine_.nodes.size() > most_hwloc_parts || machine_.packages.size() > most_hwloc_parts)
      document_.fail(object, fmt::format("the file has more than {} packages or NUMA nodes",
                                         most_hwloc_parts));
    if (type == "PU") {
      ++machine_.thread_count;
      machine_.threads |= cpus;
    } else if (type == "Core") {
      if (machine_.cores.size() == CpuSet::most)
        document_.fail(object, fmt::format("the file has more than {} cores", CpuSet::most));
      machine_.cores.push_back(cpus);
      if (is_in_package(cpus)) ++machine_.packages.back().cores;
    } else if (type == "NUMANode") {
      machine_.nodes.push_back({.number = number_of(object),
                                .cpus = cpus,
                                .memory_bytes = memory_of(object),
                                .subtype = object.attribute("subtype").value()});
    } else if (type == "Package" || type == "Socket") {
      note(object, "Package", {HwlocEndKind::package, machine_.packages.size()});
      machine_.packages.push_back({.number = number_of(object), .cpus = cpus});
    } else if (type == "Cache" || type.ends_with("Cache")) {
      constexpr long long most_level = 5, instructions = 2;
      const auto level = XmlDocument::integer(object, "depth").value_or(0);
      const auto bytes = XmlDocument::integer(object, "cache_size").value_or(0);
      const bool has_data = XmlDocument::integer(object, "cache_type") != instructions;
      if (has_data && level > 0 && level <= most_level && bytes > 0 && is_in_package(cpus))
        ++machine_.packages.back()
              .caches[{static_cast<int>(level), static_cast<std::uint64_t>(bytes)}];
    }
  }

  // True for a part of the package that was read last. A file lists a package before its parts.
  bool is_in_package(const CpuSet& cpus) const {
    return !machine_.packages.empty() && machine_.packages.back().cpus.intersects(cpus);
  }

  std::optional<std::size_t> place_of(const Above& above) {
    if (above.place == nullptr) return std::nullopt;
    if (!above.place->number) {
      above.place->number = machine_.localities.size();
      machine_.localities.push_back(above.place->cpus);
    }
    return above.place->number;
  }

  void note(pugi::xml_node object, std::string_view type, HwlocEnd end) {
    if (const auto number = XmlDocument::integer(object, "gp_index"))
      ends_.try_emplace({std::string(type), *number}, end);
  }

  void read_bridge(pugi::xml_node object, Above& above) {
    const std::string_view kind = object.attribute("bridge_type").value();
    const std::string_view buses = object.attribute("bridge_pci").value();
    if (kind.starts_with("0-")) {
      const auto range = hex_numbers(buses, {":[", "-", "]"});
      if (!buses.empty() && (range.empty() || range[1] > 0xff || range[2] > 0xff))
        document_.fail(object, "bridge_pci is not of the form 0000:[17-1a]");
      above.path = range.empty() ? std::string() : root_path(range[0], range[1]);
      return;
    }
    HwlocPciDevice device;
    if (!above.path.empty() && read_busid(object, device)) above.path += "/" + busid(device);
  }

  // Reads the bus id of an object into `device`. Returns false when the object has no bus id.
  bool read_busid(pugi::xml_node object, HwlocPciDevice& device) const {
    const std::string_view text = object.attribute("pci_busid").value();
    if (text.empty()) return false;
    if (!parse_busid(text, device))
      document_.fail(object, "pci_busid is not of the form 0000:1b:00.0");
    return true;
  }

  void read_pci(pugi::xml_node object, Above& above) {
    HwlocPciDevice device;
    device.offset = object.offset_debug();
    if (!read_busid(object, device)) return;
    if (const std::string_view text = object.attribute("pci_type").value(); !text.empty()) {
      const auto numbers = hex_numbers(text, {" [", ":", "]"});
      if (numbers.empty() || std::ranges::max(numbers) > 0xffff)
        document_.fail(object, "pci_type is not of the form 0302 [10de:2330]");
      device.pci_class = numbers[0];
      device.vendor = numbers[1];
      device.device = numbers[2];
    }
    device.link_gbyte_s = static_cast<double>(object.attribute("pci_link_speed").as_float());
    device.subtype = object.attribute("subtype").value();
    device.path = above.path;
    device.locality = place_of(above);
    device.model = info_of(object, "PCIDevice");
    if (machine_.pci.size() == most_hwloc_devices)
      document_.fail(object,
                     fmt::format("the file has more than {} PCI devices", most_hwloc_devices));
    note(object, "PCIDev", {HwlocEndKind::pci, machine_.pci.size()});
    above.pci = machine_.pci.size();
    machine_.pci.push_back(std::move(device));
  }

  HwlocOsKind kind_of(pugi::xml_node object) const {
    constexpr long long network = 2, openfabrics = 3;  // values of osdev_type in hwloc XML 1 and 2
    // In version 3 of hwloc's XML, osdev_type is a set of bits.
    constexpr long long network_bit = 1 << 4, openfabrics_bit = 1 << 5;
    const long long type = XmlDocument::integer(object, "osdev_type").value_or(-1);
    if (type < 0) return HwlocOsKind::other;
    if (is_version_3_ ? (type & openfabrics_bit) != 0 : type == openfabrics)
      return HwlocOsKind::openfabrics;
    if (is_version_3_ ? (type & network_bit) != 0 : type == network) return HwlocOsKind::network;
    return HwlocOsKind::other;
  }

  void read_os(pugi::xml_node object, const Above& above) {
    HwlocOsDevice device{.name = object.attribute("name").value(),
                         .subtype = object.attribute("subtype").value()};
    device.offset = object.offset_debug();
    device.kind = kind_of(object);
    for (const pugi::xml_node info : object.children("info"))
      device.infos.emplace_back(info.attribute("name").value(), info.attribute("value").value());
    device.pci = above.pci;
    device.locality = place_of(above);
    if (machine_.os.size() == most_hwloc_devices)
      document_.fail(object,
                     fmt::format("the file has more than {} OS devices", most_hwloc_devices));
    note(object, "OSDev", {HwlocEndKind::os, machine_.os.size()});
    machine_.os.push_back(std::move(device));
  }

  void read_matrix(pugi::xml_node node) {
    HwlocMatrix matrix{.name = node.attribute("name").value(), .ends = {}, .values = {}};
    const auto size = XmlDocument::integer(node, "nbobjs");
    if (!size || *size < 1 || *size > static_cast<long long>(most_hwloc_ends))
      document_.fail(node, fmt::format("nbobjs of the matrix {} is not between 1 and {}",
                                       matrix.name, most_hwloc_ends));
    const auto count = static_cast<std::size_t>(*size);
    // hwloc splits a long list into several <indexes> or <u64values> elements.
    for (const pugi::xml_node child : node.children("indexes"))
      each_word(child.child_value(), blanks, [&](std::string_view word) {
        if (matrix.ends.size() == count)
          document_.fail(child, "a matrix has more indexes than nbobjs");
        matrix.ends.push_back(read_end(node, child, word));
      });
    for (const pugi::xml_node child : node.children("u64values"))
      each_word(child.child_value(), blanks, [&](std::string_view word) {
        const auto value = parse_number<std::uint64_t>(word);
        if (!value) document_.fail(child, "a value of a matrix is not a number");
        if (matrix.values.size() == count * count)
          document_.fail(child, "a matrix has more values than nbobjs squared");
        matrix.values.push_back(*value);
      });
    if (matrix.ends.size() != count || matrix.values.size() != count * count)
      document_.fail(node,
                     fmt::format("the matrix {} has {} indexes and {} values, but nbobjs is {}",
                                 matrix.name, matrix.ends.size(), matrix.values.size(), count));
    machine_.matrices.push_back(std::move(matrix));
  }

  // Finds the object that an index of a matrix refers to: "894" is the gp_index of an object of the
  // matrix' type; "PCIDev:449" also states the type.
  HwlocEnd read_end(pugi::xml_node matrix, pugi::xml_node child, std::string_view word) const {
    std::string type = matrix.attribute("type").value();
    const auto colon = word.find(':');
    if (colon != std::string_view::npos) {
      type = word.substr(0, colon);
      word.remove_prefix(colon + 1);
    }
    const auto number = parse_number<std::uint64_t>(word);
    if (!number || *number > INT64_MAX)
      document_.fail(child, "an index of a matrix is not a number");
    if (type != "OSDev" && type != "PCIDev" && type != "Package") return {};
    const auto found = ends_.find({type, static_cast<long long>(*number)});
    if (found == ends_.end())
      document_.fail(
          child, fmt::format("the matrix refers to the object {} {}, which does not exist", type,
                             *number));
    return found->second;
  }

  const XmlDocument& document_;
  HwlocMachine machine_;
  // Maps the type and gp_index of hwloc objects to the objects.
  std::map<std::pair<std::string, long long>, HwlocEnd> ends_;
  bool is_version_3_ = false;
};

bool is_hwloc_xml(std::string_view text) { return first_element_is(text, "topology"); }

Topology read_hwloc_xml(std::string_view text, std::string_view origin) {
  const XmlDocument document(text, origin);
  const HwlocMachine machine = XmlReader(document, origin).read();
  TopologyHost host;
  host.id = machine.host_name.empty() ? host_of(origin) : machine.host_name;
  host.name = host.id;
  Topology topology;
  add_host(machine, std::move(host), topology);
  return topology;
}

}  // namespace

const Importer hwloc_xml{"hwloc xml", is_hwloc_xml, read_hwloc_xml};

}  // namespace atoll_v1::atoll::importers

// Exports one host as hwloc 2 XML, for libhwloc 2.0 or newer and `lstopo -i`. hwloc2.dtd in hwloc's
// source documents the format. libhwloc's built-in parser rejects comments, and attributes in any
// order other than hwloc's own.
//
// Steps: distribute the processors (hwloc_layout.cpp), arrange the devices below their bridges
// (hwloc_devices.cpp), print processors and devices as one tree, then print the matrices of links.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "atoll/inspect/inspection.hpp"
#include "facts.hpp"
#include "inspect/exporters/hwloc_devices.hpp"
#include "inspect/exporters/hwloc_matrices.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using topology_sources::busid;
using topology_sources::CpuSet;
using topology_sources::HwlocPciDevice;

// Escapes text for XML. Other characters than printable ASCII are replaced, because hwloc rejects
// them.
std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&')
      escaped += "&amp;";
    else if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else if (c == '"')
      escaped += "&quot;";
    else
      escaped += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return escaped;
}

class Writer {
 public:
  Writer(const Topology& topology, const HwlocLayout& layout, const HwlocDevices& devices,
         HwlocMatrices& matrices)
      : host_(topology.hosts.front()), layout_(layout), devices_(devices), matrices_(matrices) {}

  std::string write() {
    text_ =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
        "<topology version=\"2.0\">\n";
    depth_ = 1;
    write_part(0);
    text_ += matrices_.text();
    text_ += "</topology>\n";
    return std::move(text_);
  }

 private:
  void line(std::string_view content) {
    text_.append(2 * static_cast<std::size_t>(depth_), ' ');
    text_ += content;
    text_ += '\n';
  }
  void open(std::string_view attributes) {
    line(fmt::format("<object {}>", attributes));
    ++depth_;
  }
  void close() {
    --depth_;
    line("</object>");
  }
  void empty(std::string_view attributes) { line(fmt::format("<object {}/>", attributes)); }
  void info(std::string_view name, std::string_view value) {
    if (!value.empty()) line(fmt::format("<info name=\"{}\" value=\"{}\"/>", name, escape(value)));
  }

  static std::string sets(const CpuSet& cpus, const CpuSet& nodes) {
    return fmt::format(
        "cpuset=\"{0}\" complete_cpuset=\"{0}\" nodeset=\"{1}\" complete_nodeset=\"{1}\"",
        cpus.to_text(), nodes.to_text());
  }

  void write_part(std::size_t number) {
    const LayoutPart& part = layout_.parts()[number];
    const CpuSet cpus = layout_.cpus(part), nodes = layout_.nodes(part);
    const std::string all = sets(cpus, nodes);
    const std::uint64_t id = matrices_.new_id();
    switch (part.kind) {
      case LayoutKind::machine:
        open(
            fmt::format("type=\"Machine\" os_index=\"0\" {} allowed_cpuset=\"{}\" "
                        "allowed_nodeset=\"{}\" gp_index=\"{}\"",
                        all, cpus.to_text(), nodes.to_text(), id));
        info("HostName", host_.name);
        info("OSRelease", get_fact(host_.facts, fact::kernel_release));
        break;
      case LayoutKind::package:
        open(fmt::format("type=\"Package\" os_index=\"{}\" {} gp_index=\"{}\"", part.number, all,
                         id));
        matrices_.set_id(fmt::format("{}/package{}", host_.id, part.number), "Package", id);
        break;
      case LayoutKind::group:
        open(fmt::format("type=\"Group\" {} gp_index=\"{}\" kind=\"1001\" subkind=\"0\"", all, id));
        break;
    }
    if (part.numa) write_node(*part.numa, cpus);
    for (const std::size_t child : part.children) write_part(child);
    if (part.children.empty()) write_cores(part, nodes);
    write_devices(number);
    if (number == 0) write_switches();
    close();
  }

  void write_node(int number, const CpuSet& cpus) {
    CpuSet self;
    self.add(static_cast<unsigned>(number));
    const std::uint64_t share = host_.memory_bytes / layout_.numas().size();
    const std::uint64_t rest = host_.memory_bytes % layout_.numas().size();
    empty(fmt::format("type=\"NUMANode\" os_index=\"{}\" {} gp_index=\"{}\" local_memory=\"{}\"",
                      number, sets(cpus, self), matrices_.new_id(),
                      share + (number == layout_.numas().front() ? rest : 0)));
  }

  void write_cores(const LayoutPart& part, const CpuSet& nodes) {
    for (int core = part.first_core; core < part.first_core + part.cores; ++core) {
      CpuSet cpus;
      const int first = layout_.first_thread(core), end = layout_.first_thread(core + 1);
      for (int thread = first; thread < end; ++thread) cpus.add(static_cast<unsigned>(thread));
      open(fmt::format("type=\"Core\" os_index=\"{}\" {} gp_index=\"{}\"", core, sets(cpus, nodes),
                       matrices_.new_id()));
      for (int thread = first; thread < end; ++thread) {
        CpuSet self;
        self.add(static_cast<unsigned>(thread));
        empty(fmt::format("type=\"PU\" os_index=\"{}\" {} gp_index=\"{}\"", thread,
                          sets(self, nodes), matrices_.new_id()));
      }
      close();
    }
  }

  using Slots = std::vector<const PciSlot*>;

  // Writes the devices at one part of the machine, below their root complexes. In the topology
  // files of some cloud providers, a root complex has devices near several parts; the root complex
  // is then written at each of these parts.
  void write_devices(std::size_t place) {
    std::map<std::string, Slots> below;  // devices below each root complex
    for (const auto& slot : devices_.slots)
      if (!slot->root.empty() && slot->place == place) below[slot->root].push_back(slot.get());
    for (const auto& [root, slots] : below) {
      const auto numbers = topology_sources::hex_numbers(root.substr(3), {":", ""});
      open(
          fmt::format("type=\"Bridge\" gp_index=\"{}\" bridge_type=\"0-1\" depth=\"0\" "
                      "bridge_pci=\"{:04x}:[{:02x}-{:02x}]\"",
                      matrices_.new_id(), numbers[0], numbers[1],
                      std::max(numbers[1], buses(slots, 0).second)));
      write_below(slots, 0);
      close();
    }
    for (const auto& slot : devices_.slots)
      if (slot->root.empty() && slot->place == place) write_slot(*slot);
  }

  // Writes the devices with exactly `level` bridges above them, then the bridges of the next level
  // with the remaining devices.
  void write_below(const Slots& slots, std::size_t level) {
    std::map<std::string, Slots> below;
    for (const PciSlot* slot : slots)
      if (slot->bridges.size() > level)
        below[busid(slot->bridges[level])].push_back(slot);
      else
        write_slot(*slot);
    for (const auto& [unused, group] : below) {
      const HwlocPciDevice& bridge = group.front()->bridges[level];
      const auto [first, last] = buses(group, level + 1);
      open(
          fmt::format("type=\"Bridge\" gp_index=\"{}\" bridge_type=\"1-1\" depth=\"{}\" "
                      "bridge_pci=\"{:04x}:[{:02x}-{:02x}]\" {}",
                      matrices_.new_id(), level + 1, bridge.domain, first, last,
                      pci_attributes(bridge, 0x0604)));
      write_below(group, level + 1);
      close();
    }
  }

  // Returns the range of PCI buses below `level` bridges.
  static std::pair<unsigned, unsigned> buses(const Slots& slots, std::size_t level) {
    unsigned first = 0xff, last = 0;
    for (const PciSlot* slot : slots) {
      first =
          std::min(first, level < slot->bridges.size() ? slot->bridges[level].bus : slot->pci.bus);
      for (std::size_t i = level; i < slot->bridges.size(); ++i)
        last = std::max(last, slot->bridges[i].bus);
      last = std::max(last, slot->pci.bus);
    }
    return {first, std::max(first, last)};
  }

  static std::string pci_attributes(const HwlocPciDevice& pci, unsigned pci_class) {
    return fmt::format(
        "pci_busid=\"{:04x}:{:02x}:{:02x}.{:x}\" pci_type=\"{:04x} [{:04x}:{:04x}] [0000:0000] "
        "00\" pci_link_speed=\"{:.6f}\"",
        pci.domain, pci.bus, pci.slot, pci.function, pci_class, pci.vendor, pci.device,
        pci.link_gbyte_s);
  }

  void write_slot(const PciSlot& slot) {
    if (slot.has_address)
      open(fmt::format("type=\"PCIDev\" gp_index=\"{}\" {}", matrices_.new_id(),
                       pci_attributes(slot.pci, slot.pci.pci_class)));
    for (const TopologyGpu* gpu : slot.gpus) write_gpu(*gpu);
    for (const AdapterEntry& adapter : slot.adapters) write_adapter(adapter);
    if (slot.has_address) close();
  }

  void write_gpu(const TopologyGpu& gpu) {
    const auto& [driver, number] = devices_.gpus.at(gpu.id);
    const DriverNames& names = names_of(driver);
    const std::uint64_t id = matrices_.new_id();
    matrices_.set_id(gpu.id, "OSDev", id);
    open(fmt::format("type=\"OSDev\" gp_index=\"{}\" name=\"{}{}\"{} osdev_type=\"1\"", id,
                     names.device, number, names.subtype));
    info("GPUModel", gpu.model);
    if (!names.uuid.empty()) info(names.uuid, gpu.uuid);
    info("XGMIHiveID", get_fact(gpu.facts, fact::xgmi_hive));
    close();
  }

  void write_adapter(const AdapterEntry& adapter) {
    const TopologyNic& first = *adapter.ports.front();
    open(fmt::format("type=\"OSDev\" gp_index=\"{}\" name=\"{}\"{} osdev_type=\"{}\"",
                     matrices_.new_id(), escape(adapter.name),
                     first.layer == "slingshot" ? " subtype=\"Slingshot\"" : "",
                     is_openfabrics(first) ? 3 : 2));
    info("NodeGUID", get_fact(first.facts, fact::node_guid));
    info("SysImageGUID", first.adapter);
    for (std::size_t i = 0; i < adapter.ports.size(); ++i) {
      const TopologyNic& port = *adapter.ports[i];
      info(fmt::format("Port{}State", i + 1), port_state_number(port.state));
      if (const auto lid = number_fact(port.facts, fact::lid); lid && *lid >= 0 && *lid <= 0xffff)
        info(fmt::format("Port{}LID", i + 1), fmt::format("0x{:x}", std::lround(*lid)));
    }
    close();
  }

  void write_switches() {
    for (const HwlocSwitch& device : matrices_.switches())
      empty(fmt::format("type=\"PCIDev\" gp_index=\"{}\" subtype=\"NVSwitch\" {}", device.id,
                        pci_attributes(device.pci, 0x0680)));
  }

  const TopologyHost& host_;
  const HwlocLayout& layout_;
  const HwlocDevices& devices_;
  HwlocMatrices& matrices_;
  std::string text_;
  int depth_ = 0;
};

}  // namespace

Export to_hwloc_xml(const Topology& topology) {
  if (topology.hosts.size() != 1) {
    std::vector<std::string> names;
    for (const TopologyHost& host : topology.hosts) names.push_back(host.name);
    throw Error(ErrorCode::unsupported,
                names.empty()
                    ? std::string("hwloc XML describes one host, but the topology has none")
                    : fmt::format("hwloc XML describes one host, but the topology has {} ({}): "
                                  "export one at a time (atoll-topo --host NAME)",
                                  names.size(), enumerate(names)));
  }
  Export result;
  const HwlocLayout layout(topology.hosts.front(), topology);
  const HwlocDevices devices = arrange_devices(topology, layout, result.lost);
  HwlocMatrices matrices(topology, devices, layout, result.lost);
  result.text = Writer(topology, layout, devices, matrices).write();
  find_lost(topology, devices, result.lost);
  return result;
}

}  // namespace atoll_v1::atoll

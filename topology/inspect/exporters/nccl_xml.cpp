// Exports NCCL's topology file.
//
// The exporter completes an XML tree. If all hosts were read from one NCCL topology file, the
// exporter starts with the tree of this file, so that attributes that atoll does not know are kept;
// otherwise it starts with an empty <system>. Then it adds everything that the topology contains
// and the tree lacks. The exporter never removes or changes anything in the tree.
//
// NCCL determines some attributes itself when they are absent, but trusts them when they are
// present: sm, gdr, speed, arch and others. The exporter omits such attributes unless their values
// are known. The rank of a GPU and the number of a network device belong to a job, so NCCL sets
// both. A <gpu> without links means that the GPU has none, so a GPU with unknown links is written
// as a <pci> without a <gpu>.
#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <functional>
#include <ranges>
#include <set>
#include <sstream>

#include "atoll/tooling/inspection.hpp"
#include "facts.hpp"
#include "inspect/importers/importer.hpp"
#include "inspect/importers/nccl_tree.hpp"
#include "inspect/importers/xml_document.hpp"
#include "parse_number.hpp"
#include "pcie_rate.hpp"
#include "sources/pci_address.hpp"

namespace atoll_v1::atoll {
namespace {

using nccl::LinkEnd;
using topology_sources::normal_busid;

// Bus id for the switches of one host in a file with several hosts. Vendors' templates use bus ids
// of this form for bridges that do not exist.
constexpr std::string_view made_up_switch = "ffff:fe:00.0";

constexpr std::size_t most_bridges = 40;  // largest number of bridges above one device

// Returns the bridges of a PCI path, outermost first; empty when an element is not an address.
std::vector<std::string> bridges_of(std::string_view pci_path) {
  std::vector<std::string> bridges;
  for (const std::string_view part : words_of(pci_path, "/")) {
    if (part.starts_with("pci")) continue;
    const std::string busid = normal_busid(part);
    if (busid.empty() || std::ranges::find(bridges, busid) != bridges.end() ||
        bridges.size() == most_bridges)
      return {};
    bridges.push_back(busid);
  }
  return bridges;
}

// Sets an attribute if it is absent or empty.
void add_attribute(pugi::xml_node node, const char* name, const std::string& value) {
  if (value.empty()) return;
  pugi::xml_attribute attribute = node.attribute(name);
  if (!attribute) attribute = node.append_attribute(name);
  if (attribute.empty() || *attribute.value() == '\0') attribute.set_value(value.c_str());
}

// Sets an attribute if it is absent or empty, or has the value 0 or -1, which means "unknown".
void add_number(pugi::xml_node node, const char* name, const std::string& value) {
  const auto present = importers::XmlDocument::integer(node, name);
  if (present && *present <= 0 && !value.empty())
    node.attribute(name).set_value(value.c_str());
  else
    add_attribute(node, name, value);
}

// Prints the document in the style of NCCL's parser, which rejects XML declarations, tabs between
// elements and spaces before the end of an element.
std::string to_text(const pugi::xml_document& document) {
  std::ostringstream stream;
  document.save(stream, "  ", pugi::format_indent | pugi::format_no_declaration);
  std::string text = stream.str();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text.compare(i, 3, " />") != 0) text[kept++] = text[i];
  text.resize(kept);
  return text;
}

// The kind of source that provided the PCI paths of a topology.
enum class Ways {
  kernel,  // paths as in sysfs, from which the ports of switches must be removed
  nccl     // paths from an NCCL file; all their bridges are kept
};

// The part of NCCL's tree that belongs to one host.
class HostTree {
 public:
  // `elements` are the host's elements in the document; it is empty for a host that is not in the
  // document.
  HostTree(pugi::xml_node system, const nccl::HostElements& elements, const TopologyHost& host,
           Ways ways)
      : system_(system), hash_(elements.hash), host_(&host), ways_(ways), cpus_(elements.cpus) {
    if (hash_.empty()) hash_ = get_fact(host.facts, fact::host_hash);
    if (!nccl::is_plain(hash_)) hash_.clear();
    for (const pugi::xml_node cpu : cpus_) index(cpu);
  }

  const TopologyHost& host() const { return *host_; }
  const nccl::PciElements& elements() const { return elements_; }

  // Gives the host a hash, which files with several hosts need. If no source reported the hash, it
  // is computed from the host's id. `taken` holds the hashes of the other hosts.
  void set_hash(std::set<std::string>& taken) {
    std::size_t number = std::hash<std::string>()(host_->id);
    while (hash_.empty() || !taken.insert(hash_).second) hash_ = fmt::format("{:#x}", number++);
  }

  // Records the PCI path of a device. Call this for all devices before the first call of device().
  void note_way(const auto& device) {
    std::string lower = normal_busid(device.busid);
    if (lower.empty()) return;
    const auto bridges = bridges_of(device.pci_path);
    for (std::size_t i = bridges.size(); i > 0; --i) {
      below_[bridges[i - 1]].insert(lower.substr(0, lower.find('.')));
      lower = bridges[i - 1];
    }
  }

  // Returns the <pci> of a device. Adds the element, with the bridges above it, if it is missing.
  pugi::xml_node device(const std::string& busid, std::string_view pci_path, int numa) {
    if (const auto found = elements_.find(busid); found != elements_.end()) return found->second;
    auto bridges = bridges_of(pci_path);
    std::erase(bridges, busid);
    if (ways_ == Ways::kernel) leave_out_ports(bridges);
    std::size_t present = bridges.size();  // number of bridges that the tree already contains
    while (present > 0 && !elements_.contains(bridges[present - 1])) --present;
    pugi::xml_node parent = present > 0 ? elements_.at(bridges[present - 1]) : cpu(numa);
    for (std::size_t i = present; i < bridges.size(); ++i) {
      parent = add_pci(parent, bridges[i]);
      add_attribute(parent, "class", "0x060400");
    }
    return add_pci(parent, busid);
  }

  // Returns the <cpu> of a NUMA node; -1 stands for an unknown node.
  pugi::xml_node cpu(int numa) {
    for (const pugi::xml_node cpu : cpus_)
      if (importers::XmlDocument::integer(cpu, "numaid").value_or(-1) == numa) return cpu;
    pugi::xml_node cpu = system_.append_child("cpu");
    add_attribute(cpu, "host_hash", hash_);
    cpu.append_attribute("numaid") = numa;
    if (!cpus_.empty())
      for (const char* same : {"arch", "vendor", "familyid", "modelid"})
        add_attribute(cpu, same, cpus_.front().attribute(same).value());
    cpus_.push_back(cpu);
    return cpu;
  }
  bool has_cpus() const { return !cpus_.empty(); }

  // Finds a <net> by the name that atoll's importer gives to its NIC; null when there is none.
  pugi::xml_node net(const std::string& name) { return nets_[name]; }

 private:
  void index(pugi::xml_node parent) {
    for (const pugi::xml_node child : parent.children()) {
      const std::string_view tag = child.name();
      if (tag == "nic")
        for (const pugi::xml_node net : child.children("net")) {
          const std::string name = net.attribute("name").value();
          nets_.try_emplace(name, net);
          nets_.try_emplace(name + ':' + net.attribute("port").value(), net);
        }
      if (tag != "pci") continue;
      nccl::add_element(elements_, normal_busid(child.attribute("busid").value()), child);
      index(child);
    }
  }

  pugi::xml_node add_pci(pugi::xml_node parent, const std::string& busid) {
    pugi::xml_node pci = parent.append_child("pci");
    pci.append_attribute("busid") = nccl::short_busid(busid).c_str();
    elements_[busid] = pci;
    return pci;
  }

  // Removes from a path in the kernel's form the bridges that NCCL does not write. For each switch,
  // the kernel's path contains an upstream port and a downstream port, and there is a root port
  // above the first switch. NCCL writes only upstream ports. So every second bridge is removed,
  // counted from the device upwards, unless several devices are below the bridge.
  void leave_out_ports(std::vector<std::string>& bridges) const {
    std::vector<std::string> kept;
    bool was_port = false;
    for (const std::string& bridge : std::views::reverse(bridges)) {
      const auto below = below_.find(bridge);
      const bool is_meeting = below != below_.end() && below->second.size() > 1;
      was_port = !was_port && !is_meeting;
      if (!was_port) kept.push_back(bridge);
    }
    bridges.assign(kept.rbegin(), kept.rend());
  }

  pugi::xml_node system_;
  std::string hash_;
  const TopologyHost* host_;
  Ways ways_;
  std::vector<pugi::xml_node> cpus_;
  nccl::PciElements elements_;
  std::map<std::string, pugi::xml_node> nets_;
  // For each bridge, the bus ids of the devices below it, without function numbers.
  std::map<std::string, std::set<std::string>> below_;
};

// Adds "0x" to a hexadecimal number: "0x10de" for "10de"; "" unless the text has four hexadecimal
// digits.
std::string prefixed(std::string_view digits) {
  const bool is_number =
      digits.size() == 4 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_number ? fmt::format("0x{}", digits) : "";
}

std::string whole_number(const Facts& facts, std::string_view name, double most) {
  const auto value = number_fact(facts, name);
  return value && *value >= 1 && *value <= most ? fmt::format("{:.0f}", *value) : "";
}

// Returns the speed of a PCIe link in the kernel's spelling, which NCCL compares as text.
std::string link_speed(const Facts& facts) {
  const auto rate = number_fact(facts, fact::pci_gt_s);
  return rate && is_pcie_rate(*rate) ? fmt::format("{:.1f} GT/s PCIe", *rate) : "";
}

std::string gdr_of(const Facts& facts) {
  const std::string_view known = get_fact(facts, fact::gdr);
  return known == "yes" ? "1" : known == "no" ? "0" : "";
}

void add_pci_attributes(pugi::xml_node pci, const Facts& facts, const std::string& pci_class) {
  const std::string_view device = get_fact(facts, fact::pci_device);
  add_attribute(pci, "class", pci_class);
  if (const auto colon = device.find(':'); colon != std::string_view::npos) {
    add_attribute(pci, "vendor", prefixed(device.substr(0, colon)));
    add_attribute(pci, "device", prefixed(device.substr(colon + 1)));
  }
  add_attribute(pci, "link_speed", link_speed(facts));
  add_number(pci, "link_width", whole_number(facts, fact::pci_width, 32));
}

// Returns the PCI class of a GPU; 0x03, like NCCL, when the class is unknown.
std::string class_of(const TopologyGpu& gpu) {
  const std::string_view known = get_fact(gpu.facts, fact::pci_class);
  return nccl::is_gpu_class(known) && known.size() == 4 ? prefixed(known) + "00" : "0x03";
}

class Writer {
 public:
  explicit Writer(const Topology& topology) : topology_(topology) {
    for (const TopologyHost& host : topology.hosts) hosts_.emplace(host.id, &host);
    for (const TopologyGpu& gpu : topology.gpus) gpus_.try_emplace(gpu.id, &gpu);
    for (const TopologyDocument& document : topology.documents)
      if (document.format == nccl::document_format)
        from_files_.insert(document.hosts.begin(), document.hosts.end());
    for (const TopologyNic& nic : topology.nics)
      if (const PortName port = split_port(nic.name); !port.port.empty())
        with_ports_.insert({nic.host, std::string(port.device)});
    for (const TopologyLink& link : topology.links) {
      note_link(link, link.a, link.b);
      note_link(link, link.b, link.a);
    }
  }

  std::string write() {
    if (!take_document()) start_empty();
    std::map<std::string_view, Part*> by_host;
    for (Part& part : parts_) by_host[part.tree.host().id] = &part;
    for (const TopologyGpu& gpu : topology_.gpus)
      if (by_host.contains(gpu.host)) by_host[gpu.host]->gpus.push_back(&gpu);
    for (const TopologyNic& nic : topology_.nics)
      if (by_host.contains(nic.host)) by_host[nic.host]->nics.push_back(&nic);
    for (Part& part : parts_) {
      HostTree& tree = part.tree;
      for (const TopologyGpu* gpu : part.gpus) tree.note_way(*gpu);
      for (const TopologyNic* nic : part.nics) tree.note_way(*nic);
      for (const TopologyGpu* gpu : part.gpus) add_gpu(*gpu, part);
      for (const TopologyNic* nic : part.nics) add_nic(*nic, tree);
      if (!tree.has_cpus()) tree.cpu(-1);
    }
    std::string text = to_text(document_);
    check(text);
    return text;
  }

 private:
  // The other end of a link of a GPU: a GPU, a switch or a processor.
  struct Target {
    LinkEnd end = LinkEnd::own_switch;
    std::string busid;
    auto operator<=>(const Target&) const = default;
  };
  struct Links {
    std::string element;    // name of the XML element: "nvlink" or "xgmi"
    std::string pci_class;  // PCI class of the other end
    int count = 0;
  };
  struct Part {
    HostTree tree;
    // The ends of the links that the original file has, by the bus id of the GPU. A link between
    // two GPUs counts for both, even if only one of them shows it.
    std::map<std::string, std::set<Target>> present = {};
    std::vector<const TopologyGpu*> gpus = {};
    std::vector<const TopologyNic*> nics = {};
  };

  // Loads the NCCL topology file that all hosts were read from. Returns false when there is no such
  // file.
  bool take_document() {
    for (const TopologyDocument& original : topology_.documents) {
      const std::set<std::string> hosts(original.hosts.begin(), original.hosts.end());
      const bool is_whole = hosts.size() == original.hosts.size() &&
                            std::ranges::equal(hosts, hosts_ | std::views::keys);
      if (original.format != nccl::document_format || !is_whole) continue;
      try {
        const Topology read = importers::nccl_xml.read(original.text, original.origin);
        if (read.hosts.size() != hosts.size()) continue;
      } catch (const Error&) {
        continue;
      }
      document_.load_buffer(original.text.data(), original.text.size(),
                            pugi::parse_default | pugi::parse_comments, pugi::encoding_utf8);
      const pugi::xml_node system = document_.document_element();
      const auto elements = nccl::hosts_of(system);
      for (std::size_t i = 0; i < elements.size(); ++i)
        // The PCI paths of devices that the file lacks come from another source and have the
        // kernel's form.
        parts_.push_back(
            {HostTree(system, elements[i], *hosts_.at(original.hosts[i]), Ways::kernel)});
      for (Part& part : parts_) note_present(part);
      return true;
    }
    return false;
  }

  void start_empty() {
    const bool is_rccl = std::ranges::any_of(
        topology_.links, [](const TopologyLink& link) { return link.type.starts_with("xgmi"); });
    pugi::xml_node system = document_.append_child("system");
    system.append_attribute("version") = is_rccl ? "2" : "1";
    for (const TopologyHost& host : topology_.hosts)
      parts_.push_back(
          {HostTree(system, {}, host, from_files_.contains(host.id) ? Ways::nccl : Ways::kernel)});
    std::set<std::string> taken;
    if (parts_.size() > 1)
      for (Part& part : parts_) part.tree.set_hash(taken);
  }

  static void note_present(Part& part) {
    const nccl::PciElements& elements = part.tree.elements();
    for (const auto& [busid, pci] : elements)
      for (const pugi::xml_node link : pci.child("gpu").children()) {
        if (!nccl::is_link(link)) continue;
        const LinkEnd end = nccl::link_end(link, elements);
        const std::string target = normal_busid(link.attribute("target").value());
        const bool is_gpu = end == LinkEnd::gpu || end == LinkEnd::unseen_gpu;
        part.present[busid].insert(same_end({end, is_gpu ? target : ""}));
        if (end == LinkEnd::gpu) part.present[target].insert({end, busid});
      }
  }

  // All switches of a host count as one, because the format cannot distinguish them.
  static Target same_end(Target target) {
    if (target.end == LinkEnd::hidden_switch) target.end = LinkEnd::own_switch;
    return target;
  }

  // Records a link of a GPU if the format can hold the link. NCCL's file can hold links between
  // GPUs of one host, and links to one switch.
  void note_link(const TopologyLink& link, const std::string& from, const std::string& to) {
    const auto gpu = gpus_.find(from);
    if (gpu == gpus_.end() || link.count > nccl::most_links) return;
    const auto peer = gpus_.find(to);
    const std::string type = link.type.substr(0, link.type.find('_'));
    const std::string_view end = std::string_view(to).substr(to.rfind('/') + 1);
    if (type != "nvlink" && type != "xgmi") return;
    Target target;
    std::string pci_class = "0x068000";  // PCI class of a switch
    if (link.type == "nvlink_cpu") {
      target.end = LinkEnd::processor;
      pci_class = "0x068001";
    } else if (link.type == type + "_unseen" && end.starts_with(nccl::unseen_prefix)) {
      target = {LinkEnd::unseen_gpu, normal_busid(end.substr(nccl::unseen_prefix.size()))};
      pci_class = "0x03";
    } else if (link.type != type) {
      return;
    } else if (peer != gpus_.end()) {
      target = {LinkEnd::gpu, normal_busid(peer->second->busid)};
      if (peer->second->host != gpu->second->host || target.busid.empty() || to == from) return;
      pci_class = class_of(*peer->second);
    } else if (!hosts_.contains(to.substr(0, std::min(to.size(), to.rfind('/'))))) {
      target.end = LinkEnd::hidden_switch;
      racks_.insert(to);
    }
    Links& links = links_[from][target];
    links = {type, pci_class, std::min(links.count + link.count, nccl::most_links)};
  }

  void add_gpu(const TopologyGpu& gpu, Part& part) {
    HostTree& tree = part.tree;
    const std::string busid = normal_busid(gpu.busid);
    if (busid.empty()) return;
    pugi::xml_node pci = tree.device(busid, gpu.pci_path, gpu.numa);
    add_pci_attributes(pci, gpu.facts, class_of(gpu));
    const auto links = links_.find(gpu.id);
    pugi::xml_node element = pci.child("gpu");
    if (!element && tree.host().gpu_links == IslandState::unknown && links == links_.end()) return;
    const bool is_new = !element;
    if (is_new) element = pci.append_child("gpu");
    add_attribute(element, "dev", gpu.index < 0 ? "" : std::to_string(gpu.index));
    add_attribute(element, "sm", whole_number(gpu.facts, fact::sm, 999));
    if (const auto gcn = get_fact(gpu.facts, fact::gcn); nccl::is_plain(gcn))
      add_attribute(element, "gcn", std::string(gcn));
    add_attribute(element, "gdr", gdr_of(gpu.facts));
    if (links == links_.end()) return;
    const std::set<Target> present = is_new ? std::set<Target>() : part.present[busid];
    for (const auto& [target, link] : links->second) {
      if (present.contains(same_end(target))) continue;
      pugi::xml_node added = element.append_child(link.element.c_str());
      add_attribute(added, "target", target_of(target));
      added.append_attribute("count") = link.count;
      add_attribute(added, "tclass", link.pci_class);
    }
  }

  // Returns the `target` attribute for an end of links. NCCL treats all hosts with links to the
  // hidden target as connected. So in a file of several hosts, the hidden target means the switches
  // of a rack, and the file can contain only one rack.
  std::string target_of(const Target& target) const {
    if (same_end(target).end != LinkEnd::own_switch)
      return nccl::short_busid(target.busid);  // a processor has no bus id
    const bool is_only_rack = target.end == LinkEnd::hidden_switch && racks_.size() == 1;
    return std::string(parts_.size() == 1 || is_only_rack ? nccl::hidden_target : made_up_switch);
  }

  // Adds a NIC to the tree. A NIC without a bus id is omitted, because NCCL searches for NICs that
  // the file lacks, but not for those in the file. Virtual interfaces are omitted, because NCCL
  // must not use them.
  void add_nic(const TopologyNic& nic, HostTree& tree) {
    pugi::xml_node net = tree.net(nic.name);
    if (!net) net = new_net(nic, tree);
    if (!net) return;
    if (nic.rate_gbit_s && *nic.rate_gbit_s > 0 && *nic.rate_gbit_s <= nccl::most_gbit_s)
      add_number(net, "speed", fmt::format("{:.0f}", *nic.rate_gbit_s * 1000));
    add_attribute(net, "guid", nccl::number_of_guid(nic.adapter));
    add_attribute(net, "gdr", gdr_of(nic.facts));
  }

  // Adds a <net> for a NIC, and returns the element; null when the NIC cannot be written.
  pugi::xml_node new_net(const TopologyNic& nic, HostTree& tree) const {
    const std::string busid = normal_busid(nic.busid);
    if (busid.empty() || nic.is_virtual || nic.name.empty() || !nccl::is_plain(nic.name)) return {};
    pugi::xml_node pci = tree.device(busid, nic.pci_path, nic.numa);
    const auto [usual_class, vendor] = nccl::ids_of_layer(nic.layer);
    const std::string own = prefixed(get_fact(nic.facts, fact::pci_class));
    add_pci_attributes(pci, nic.facts,
                       own.starts_with("0x02") ? own + "00" : std::string(usual_class));
    add_attribute(pci, "vendor", std::string(vendor));
    if (nic.name == nccl::unnamed_nic(busid)) return {};
    pugi::xml_node element = pci.child("nic");
    if (!element) element = pci.append_child("nic");
    pugi::xml_node net = element.append_child("net");
    const PortName port = split_port(nic.name);
    add_attribute(net, "name", std::string(port.device));
    add_attribute(net, "port", std::string(port.port));
    if (with_ports_.contains({nic.host, nic.name})) add_attribute(net, "port", "1");
    return net;
  }

  // Throws Error(unsupported) if atoll's importer cannot read the exported text.
  static void check(const std::string& text) try {
    importers::nccl_xml.read(text, "export");
  } catch (const Error& error) {
    throw Error(ErrorCode::unsupported,
                fmt::format("NCCL's topology file cannot hold this machine: {}", error.what()));
  }

  const Topology& topology_;
  std::map<std::string, const TopologyHost*> hosts_;
  std::map<std::string, const TopologyGpu*> gpus_;
  std::set<std::string> from_files_;  // hosts with PCI paths from an NCCL file
  // Host and device name of each NIC that has several ports.
  std::set<std::pair<std::string, std::string>> with_ports_;
  std::set<std::string> racks_;  // ids of switches that belong to no host
  // Links of each GPU, grouped by their other end.
  std::map<std::string, std::map<Target, Links>> links_;
  pugi::xml_document document_;
  std::vector<Part> parts_;  // one tree for each host of the file
};

}  // namespace

std::string to_nccl_xml(const Topology& topology) { return Writer(topology).write(); }

}  // namespace atoll_v1::atoll

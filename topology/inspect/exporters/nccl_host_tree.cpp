#include "inspect/exporters/nccl_host_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "facts.hpp"
#include "inspect/importers/xml_document.hpp"
#include "inspect/text.hpp"
#include "sources/pci_address.hpp"

namespace atoll_v1::atoll::nccl {
namespace {

using topology_sources::normal_busid;

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

void append_escaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("&#{};", static_cast<int>(c));
    else
      out += c;
  }
}

bool is_written(pugi::xml_node node) {
  return node.type() == pugi::node_element || node.type() == pugi::node_comment;
}

// Appends a node as text. The parser in NCCL rejects XML declarations, tabs
// between elements and spaces before the end of an element.
void append_node(pugi::xml_node node, std::size_t depth, std::string& out) {
  const std::string indent(2 * depth, ' ');
  if (node.type() == pugi::node_comment) {
    out += fmt::format("{}<!--{}-->\n", indent, node.value());
    return;
  }
  out += indent + '<' + node.name();
  for (const pugi::xml_attribute attribute : node.attributes()) {
    out += fmt::format(" {}=\"", attribute.name());
    append_escaped(attribute.value(), out);
    out += '"';
  }
  if (!node.find_child(is_written)) {
    out += "/>\n";
    return;
  }
  out += ">\n";
  for (const pugi::xml_node child : node.children())
    if (is_written(child)) append_node(child, depth + 1, out);
  out += fmt::format("{}</{}>\n", indent, node.name());
}

}  // namespace

void add_attribute(pugi::xml_node node, const char* name, const std::string& value) {
  if (value.empty()) return;
  pugi::xml_attribute attribute = node.attribute(name);
  if (!attribute) attribute = node.append_attribute(name);
  if (attribute.empty() || *attribute.value() == '\0') attribute.set_value(value.c_str());
}

void add_number(pugi::xml_node node, const char* name, const std::string& value) {
  const auto present = importers::XmlDocument::integer(node, name);
  if (present && *present <= 0 && !value.empty())
    node.attribute(name).set_value(value.c_str());
  else
    add_attribute(node, name, value);
}

std::string to_text(const pugi::xml_document& document) {
  std::string text;
  for (const pugi::xml_node node : document.children())
    if (is_written(node)) append_node(node, 0, text);
  return text;
}

HostTree::HostTree(pugi::xml_node system, const HostElements& elements, const TopologyHost& host,
                   Ways ways)
    : system_(system), hash_(elements.hash), host_(&host), ways_(ways), cpus_(elements.cpus) {
  if (hash_.empty()) hash_ = get_fact(host.facts, fact::host_hash);
  if (!is_plain(hash_)) hash_.clear();
  for (const pugi::xml_node cpu : cpus_) index(cpu);
}

void HostTree::index(pugi::xml_node parent) {
  for (const pugi::xml_node child : parent.children()) {
    const std::string_view tag = child.name();
    if (tag == "nic")
      for (const pugi::xml_node net : child.children("net")) {
        const std::string name = net.attribute("name").value();
        nets_.try_emplace(name, net);
        nets_.try_emplace(name + ':' + net.attribute("port").value(), net);
      }
    if (tag != "pci") continue;
    add_element(elements_, normal_busid(child.attribute("busid").value()), child);
    index(child);
  }
}

void HostTree::set_hash(std::set<std::string>& taken) {
  std::uint64_t number = 14695981039346656037ULL;  // start value of the FNV-1a hash
  for (const char c : host_->id)
    number = (number ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  while (hash_.empty() || !taken.insert(hash_).second) hash_ = fmt::format("{:#x}", number++);
}

void HostTree::note_way(const std::string& busid, std::string_view pci_path) {
  std::string lower = busid;
  const auto bridges = bridges_of(pci_path);
  for (std::size_t i = bridges.size(); i > 0; --i) {
    below_[bridges[i - 1]].insert(lower.substr(0, lower.find('.')));
    lower = bridges[i - 1];
  }
}

// Removes from a path in the kernel's form the bridges that NCCL does not write. For each switch,
// the kernel's path contains an upstream port and a downstream port, and there is a root port above
// the first switch. NCCL writes only upstream ports. So every second bridge is removed, counted
// from the device upwards, unless several devices are below the bridge.
void HostTree::leave_out_ports(std::vector<std::string>& bridges) const {
  std::vector<std::string> kept;
  bool may_be_port = true;
  for (std::size_t i = bridges.size(); i > 0; --i) {
    const auto below = below_.find(bridges[i - 1]);
    const bool is_meeting = below != below_.end() && below->second.size() > 1;
    if (may_be_port && !is_meeting) {
      may_be_port = false;
      continue;
    }
    kept.push_back(bridges[i - 1]);
    may_be_port = true;
  }
  bridges.assign(kept.rbegin(), kept.rend());
}

pugi::xml_node HostTree::device(const std::string& busid, std::string_view pci_path, int numa) {
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

pugi::xml_node HostTree::add_pci(pugi::xml_node parent, const std::string& busid) {
  pugi::xml_node pci = parent.append_child("pci");
  pci.append_attribute("busid") = short_busid(busid).c_str();
  elements_[busid] = pci;
  return pci;
}

pugi::xml_node HostTree::cpu(int numa) {
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

pugi::xml_node HostTree::net(const std::string& name) const {
  const auto found = nets_.find(name);
  return found == nets_.end() ? pugi::xml_node() : found->second;
}

}  // namespace atoll_v1::atoll::nccl

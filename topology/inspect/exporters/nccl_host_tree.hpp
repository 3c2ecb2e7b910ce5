// Builds the part of NCCL's topology tree that belongs to one host.
#pragma once

#include <map>
#include <pugixml.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/importers/nccl_tree.hpp"

namespace atoll_v1::atoll::nccl {

// The kind of source that provided the PCI paths of a topology.
enum class Ways {
  kernel,  // paths as in sysfs, from which the ports of switches must be removed
  nccl     // paths from a file of NCCL, of which all bridges are kept
};

class HostTree {
 public:
  // `elements` are the host's elements in the document; it is empty for a host that is not in the
  // document.
  HostTree(pugi::xml_node system, const HostElements& elements, const TopologyHost& host,
           Ways ways);

  const TopologyHost& host() const { return *host_; }
  const PciElements& elements() const { return elements_; }

  // Gives the host a hash, which files with several hosts need. If no source reported the hash, it
  // is computed from the host's id. `taken` holds the hashes of the other hosts.
  void set_hash(std::set<std::string>& taken);

  // Records the PCI path of a device. Call this for all devices before the first call of device().
  void note_way(const std::string& busid, std::string_view pci_path);

  // Returns the <pci> of a device. Adds the element, with the bridges above it, if it is missing.
  pugi::xml_node device(const std::string& busid, std::string_view pci_path, int numa);
  // Returns the <cpu> of a NUMA node; -1 stands for an unknown node.
  pugi::xml_node cpu(int numa);
  bool has_cpus() const { return !cpus_.empty(); }

  // Finds a <net> by the name that atoll's importer gives to its NIC; null when there is no such
  // element.
  pugi::xml_node net(const std::string& name) const;

 private:
  void index(pugi::xml_node parent);
  pugi::xml_node add_pci(pugi::xml_node parent, const std::string& busid);
  void leave_out_ports(std::vector<std::string>& bridges) const;

  pugi::xml_node system_;
  std::string hash_;
  const TopologyHost* host_;
  Ways ways_;
  std::vector<pugi::xml_node> cpus_;
  PciElements elements_;
  std::map<std::string, pugi::xml_node, std::less<>> nets_;
  // For each bridge, the bus ids of the devices below it, without function numbers.
  std::map<std::string, std::set<std::string>> below_;
};

// Sets an attribute if it is absent or empty.
void add_attribute(pugi::xml_node node, const char* name, const std::string& value);
// Sets an attribute if it is absent or empty, or has the value 0 or -1, which means "unknown".
void add_number(pugi::xml_node node, const char* name, const std::string& value);

// Prints the document in the style that NCCL's parser requires.
std::string to_text(const pugi::xml_document& document);

}  // namespace atoll_v1::atoll::nccl

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

// The form of the PCI paths of a topology.
enum class Ways {
  kernel,  // paths as in sysfs; ports of switches are omitted
  nccl     // paths from a file of NCCL; all bridges are kept
};

class HostTree {
 public:
  // `elements` are the host's elements in the document; empty when the host is new.
  HostTree(pugi::xml_node system, const HostElements& elements, const TopologyHost& host,
           Ways ways);

  const TopologyHost& host() const { return *host_; }
  const PciElements& elements() const { return elements_; }

  // A file with several hosts needs a hash for each. If no source gave one, it is derived from the
  // id.
  void set_hash(std::set<std::string>& taken);

  // Call this for all devices before the first call of device().
  void note_way(const std::string& busid, std::string_view pci_path);

  // Returns the <pci> of a device and adds it, with its bridges, if it is missing.
  pugi::xml_node device(const std::string& busid, std::string_view pci_path, int numa);
  // Returns the <cpu> of a NUMA node; -1 stands for an unknown node.
  pugi::xml_node cpu(int numa);
  bool has_cpus() const { return !cpus_.empty(); }

  // Finds a <net> by the name that the importer gives it; null when there is none.
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
  // Bridge -> devices below it, without their function number.
  std::map<std::string, std::set<std::string>> below_;
};

// Sets an attribute that is absent or empty.
void add_attribute(pugi::xml_node node, const char* name, const std::string& value);
// Also replaces the numbers 0 and -1, which mean "unknown".
void add_number(pugi::xml_node node, const char* name, const std::string& value);

// Prints the document in NCCL's style, which NCCL's parser accepts.
std::string to_text(const pugi::xml_document& document);

}  // namespace atoll_v1::atoll::nccl

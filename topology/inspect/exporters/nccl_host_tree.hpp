// One host's part of NCCL's topology tree, as it is completed.
#pragma once

#include <map>
#include <pugixml.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/importers/nccl_tree.hpp"

namespace atoll_v1::atoll::nccl {

// Whether the bridges of a PCI path are all to be kept.
enum class Ways {
  kernel,  // as sysfs spells them
  nccl     // from a file of NCCL
};

class HostTree {
 public:
  // `elements` are what is there already; none for a host that is to be written anew.
  HostTree(pugi::xml_node system, const HostElements& elements, const TopologyHost& host,
           Ways ways);

  const TopologyHost& host() const { return *host_; }
  const PciElements& elements() const { return elements_; }

  // Several hosts in one file need a hash each. It is made of the id where no source gave one.
  void set_hash(std::set<std::string>& taken);

  // All ways have to be known before the first device is added.
  void note_way(const std::string& busid, std::string_view pci_path);

  // The <pci> of a device, and the bridges above it, which are added where they are missing.
  pugi::xml_node device(const std::string& busid, std::string_view pci_path, int numa);
  // The <cpu> of a NUMA node; -1: of devices whose node is unknown.
  pugi::xml_node cpu(int numa);
  bool has_cpus() const { return !cpus_.empty(); }

  // A <net> by the name that the reader gives it; null when there is none.
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
  std::map<std::string, std::set<std::string>> below_;  // devices on a bridge, without function
};

// Adds an attribute that is absent or empty.
void add_attribute(pugi::xml_node node, const char* name, const std::string& value);
// Also where it is a number that means "unknown": 0 or -1.
void add_number(pugi::xml_node node, const char* name, const std::string& value);

// As NCCL writes it and its parser reads it.
std::string to_text(const pugi::xml_document& document);

}  // namespace atoll_v1::atoll::nccl

// What reading and writing NCCL's topology files have in common: how their elements are told apart.
// The facts are those of NCCL 2.30 and RCCL 2.21 (src/graph/xml.cc, topo.cc).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <pugixml.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::nccl {

inline constexpr std::string_view document_format = "nccl xml";  // TopologyDocument::format
inline constexpr std::string_view hidden_target = "fffffff:ff:ff.0";
inline constexpr std::size_t longest_text = 255;  // of an attribute, for NCCL itself
inline constexpr int most_links = 1024;           // between a GPU and one other end
inline constexpr double most_gbit_s = 100'000;
inline constexpr std::string_view unseen_prefix = "unseen-";  // "HOST/unseen-BUSID": end of a link

// The <cpu> elements of one host, in their order.
struct HostElements {
  std::string hash;
  std::vector<pugi::xml_node> cpus;
};
// In order of appearance. A <cpu> without a hash belongs to the only host that has one: a template
// that was filled in by a live machine.
std::vector<HostElements> hosts_of(pugi::xml_node system);

// The <pci> elements of one host by bus id. Templates made by hand give one id to a bridge and a
// NIC: the first counts, and a GPU before others.
using PciElements = std::map<std::string, pugi::xml_node, std::less<>>;
// False when it would be the second GPU of that id.
bool add_element(PciElements& elements, const std::string& busid, pugi::xml_node pci);

// "030200", as far as it is given; "" absent.
std::string class_of(pugi::xml_node pci);
// 0 where it is absent or a placeholder (0x0000, 0xffff).
int vendor_of(pugi::xml_node pci);
inline constexpr int amd = 0x1002;

// A <pci> with a <gpu>, or of a GPU's class; the display adapters of servers' boards are none.
bool is_gpu(pugi::xml_node pci);
bool is_network(std::string_view pci_class);
// A file without <net> names no adapter: "nic-0000:10:1b.0".
std::string unnamed_nic(std::string_view busid);

// Bus ids are compared as text by NCCL, which writes four digits of domain where they suffice.
std::string short_busid(std::string_view busid);

// Printable, and short enough for NCCL.
bool is_plain(std::string_view text);

// What stands at the other end of an <nvlink> or <xgmi>.
enum class LinkEnd {
  itself,         // a defect of templates: says nothing
  gpu,            // of this host, in the file
  unseen_gpu,     // a GPU that the file leaves out: files hold only what a job used
  processor,      // POWER
  hidden_switch,  // a switch that the machine cannot see, perhaps shared with other hosts
  own_switch      // a switch of this host
};
LinkEnd link_end(pugi::xml_node link, const PciElements& elements);
bool is_link(pugi::xml_node element);  // <nvlink> or <xgmi>
// "nvlink", "xgmi"
std::string_view type_of_link(pugi::xml_node link);

// The system image GUID as the kernel prints it, from NCCL's number, whose bytes stand the other
// way round: "946d:ae03:0050:709a" for 0x9a70500003ae6d94. "" for what is no GUID: absent,
// scrubbed, or one of the small numbers by which network plugins count their devices.
std::string guid_of(std::string_view number);
// Back again; "" for what guid_of() does not make.
std::string number_of_guid(std::string_view guid);

// A line for each kind of thing that `topology` knows and the file that was made of it does not
// give back. `again` is that file, read; its hosts stand in the order of `hosts`.
struct Rereading {
  const Topology& topology;
  const Topology& again;
  std::vector<std::string> hosts;
  bool from_document = false;  // the file is that from which the topology was read, completed
};
std::vector<std::string> find_lost(const Rereading& rereading);

}  // namespace atoll_v1::atoll::nccl

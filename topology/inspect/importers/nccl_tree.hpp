// The elements of NCCL's topology files, for the importer and the exporter. Checked against NCCL
// 2.30 and RCCL 2.21 (src/graph/xml.cc, topo.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <pugixml.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::nccl {

// Value of TopologyDocument::format.
inline constexpr std::string_view document_format = "nccl xml";
inline constexpr std::string_view hidden_target = "fffffff:ff:ff.0";
inline constexpr std::size_t longest_text = 255;  // longest attribute that NCCL accepts, in bytes
inline constexpr int most_links = 1024;           // maximum of links from a GPU to one other end
inline constexpr double most_gbit_s = 100'000;
// "HOST/unseen-BUSID" is the id of a link's end.
inline constexpr std::string_view unseen_prefix = "unseen-";

// The <cpu> elements of one host, in the order of the file.
struct HostElements {
  std::string hash;
  std::vector<pugi::xml_node> cpus;
};
// The hosts in the order of the file. If only one host has a hash, it also gets the <cpu> elements
// without one: this happens when NCCL completes a template on a live machine.
std::vector<HostElements> hosts_of(pugi::xml_node system);

// bus id -> <pci> element of one host. Hand-made templates may use an id for a bridge and a NIC:
// the first counts, but a GPU replaces anything else.
using PciElements = std::map<std::string, pugi::xml_node, std::less<>>;
// Returns false when the bus id already belongs to another GPU.
bool add_element(PciElements& elements, const std::string& busid, pugi::xml_node pci);

// "030200", or fewer digits if the file has fewer; "" when absent.
std::string class_of(pugi::xml_node pci);
// 0 when it is absent or a placeholder (0x0000, 0xffff).
int vendor_of(pugi::xml_node pci);
inline constexpr int amd = 0x1002;

// True for a <pci> that contains a <gpu> or has the class of a GPU. Display adapters on server
// boards are excluded.
bool is_gpu(pugi::xml_node pci);
bool is_network(std::string_view pci_class);
// The name of an adapter without a <net>: "nic-0000:10:1b.0".
std::string unnamed_nic(std::string_view busid);

// "00000000:1b:00.0" -> "0000:1b:00.0". NCCL compares bus ids as text and writes four digits of the
// domain where that is enough.
std::string short_busid(std::string_view busid);

// True for printable text that is short enough for NCCL.
bool is_plain(std::string_view text);

// The other end of an <nvlink> or <xgmi>.
enum class LinkEnd {
  itself,  // the GPU itself, a mistake in some templates; ignored
  gpu,     // GPU of this host that is in the file
  // GPU that is not in the file; files contain only the GPUs of the job that wrote them.
  unseen_gpu,
  processor,      // CPU, on POWER machines
  hidden_switch,  // switch that the host cannot see, so that other hosts may share it
  own_switch      // switch of this host
};
LinkEnd link_end(pugi::xml_node link, const PciElements& elements);
bool is_link(pugi::xml_node element);  // True for <nvlink> and <xgmi>
// "nvlink" or "xgmi"
std::string_view type_of_link(pugi::xml_node link);

// Converts NCCL's number to the kernel's form of a system image GUID, with the bytes in reverse
// order: 0x9a70500003ae6d94 -> "946d:ae03:0050:709a". Returns "" when the number is absent,
// anonymised, or small: some network plugins only count their devices.
std::string guid_of(std::string_view number);
// The inverse of guid_of(); "" for a text that guid_of() does not return.
std::string number_of_guid(std::string_view guid);

// --- single attributes ---

// Empty when the attribute is absent, not an integer, or out of range.
std::optional<int> integer_in(pugi::xml_node node, const char* attribute,
                              std::pair<long long, long long> range);

// Adds the processors of a mask such as "0000ffff,ff" to `set`; the last word is the lowest. A
// malformed mask adds nothing.
void add_mask(std::string_view text, std::vector<std::uint32_t>& set);

// Adds device id, class and link of a <pci>, unless they are placeholders.
void add_pci_facts(pugi::xml_node pci, Facts& facts);
// Adds whether GPUDirect works; `node` is a <gpu> or a <net>.
void add_gdr(pugi::xml_node node, Facts& facts);

// Returns "gfx942" or the like; "" for GPUs of NVIDIA.
std::string gcn_of(pugi::xml_node gpu);

// Rate of a <net>; empty when the file has none, 0 or -1.
std::optional<double> gbit_s_of(pugi::xml_node net);
// `pci` is null for an interface directly below a <cpu>.
std::string layer_of(pugi::xml_node pci, std::string_view net_name);
// True for the names that Linux and its tools give to bridges, tunnels and interfaces of
// containers.
bool is_virtual_name(std::string_view net_name);

// Describes what an exported file loses. `again` is the file, read again; its hosts are in the
// order of `hosts`. Returns one line for each kind of information that is in `topology` but not in
// `again`.
struct Rereading {
  const Topology& topology;
  const Topology& again;
  std::vector<std::string> hosts;
  bool from_document = false;  // the export completes the file that the topology was read from
};
std::vector<std::string> find_lost(const Rereading& rereading);

}  // namespace atoll_v1::atoll::nccl

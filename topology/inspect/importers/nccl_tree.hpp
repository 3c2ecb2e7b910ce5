// Reads elements of NCCL's topology files, for the importer and the exporter. The rules are those
// of NCCL 2.30 and RCCL 2.21 (src/graph/xml.cc, topo.cc).
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

// Name of NCCL's file format in TopologyDocument::format.
inline constexpr std::string_view document_format = "nccl xml";
// Bus id that NCCL writes as the target of links to switches that the host cannot see.
inline constexpr std::string_view hidden_target = "fffffff:ff:ff.0";
inline constexpr std::size_t longest_text = 255;  // longest attribute that NCCL accepts, in bytes
inline constexpr int most_links = 1024;           // largest number of links between two ends
inline constexpr double most_gbit_s = 100'000;
// A GPU that has links but is not in the file gets the id "HOST/unseen-BUSID".
inline constexpr std::string_view unseen_prefix = "unseen-";

// The hash of one host and its <cpu> elements, in the order of the file.
struct HostElements {
  std::string hash;
  std::vector<pugi::xml_node> cpus;
};
// Returns the hosts in the order of the file. If only one host has a hash, it also gets the <cpu>
// elements without a hash: NCCL writes such files when it completes a template on a live machine.
std::vector<HostElements> hosts_of(pugi::xml_node system);

// Maps the bus ids of one host to <pci> elements. Hand-made templates may use one bus id for a
// bridge and a NIC: the first element is kept, unless the second one is a GPU.
using PciElements = std::map<std::string, pugi::xml_node, std::less<>>;
// Adds a <pci> to the map. Returns false when the bus id already belongs to another GPU.
bool add_element(PciElements& elements, const std::string& busid, pugi::xml_node pci);

// Returns the PCI class of a <pci>: "030200", or fewer digits if the file has fewer; "" when the
// class is absent.
std::string class_of(pugi::xml_node pci);
// Returns the PCI vendor; 0 when it is absent or a placeholder (0x0000, 0xffff).
int vendor_of(pugi::xml_node pci);
inline constexpr int amd = 0x1002;

// True for a <pci> that contains a <gpu> or has the class of a GPU. Display adapters on server
// boards are excluded.
bool is_gpu(pugi::xml_node pci);
bool is_gpu_class(std::string_view pci_class);
bool is_network(std::string_view pci_class);
// Returns the name for an adapter without a <net>: "nic-0000:10:1b.0".
std::string unnamed_nic(std::string_view busid);

// Shortens "00000000:1b:00.0" to "0000:1b:00.0". NCCL compares bus ids as text, and writes domains
// with four digits unless they are longer.
std::string short_busid(std::string_view busid);

// True for printable ASCII text that is not too long for NCCL.
bool is_plain(std::string_view text);

// The kind of end that an <nvlink> or <xgmi> element of a GPU leads to.
enum class LinkEnd {
  itself,  // the GPU itself: some topology files contain this mistake; such links are ignored
  gpu,     // another GPU of this host, which the file describes
  // GPU that is not in the file: files contain only the GPUs of the job that wrote them.
  unseen_gpu,
  processor,      // CPU; only POWER machines have NVLinks to a CPU
  hidden_switch,  // switch that the host cannot see, so that other hosts may share it
  own_switch      // switch of this host
};
LinkEnd link_end(pugi::xml_node link, const PciElements& elements);
bool is_link(pugi::xml_node element);  // True for the elements <nvlink> and <xgmi>.
// Returns "nvlink" or "xgmi".
std::string_view type_of_link(pugi::xml_node link);

// Converts a GUID from NCCL's form to the kernel's, which has the bytes in reverse order:
// "0x9a70500003ae6d94" becomes "946d:ae03:0050:709a". Returns "" when the number is absent,
// anonymised, or small, because some network plugins only count their devices.
std::string guid_of(std::string_view number);
// The inverse of guid_of(). Returns "" for a text that guid_of() cannot return.
std::string number_of_guid(std::string_view guid);

// Reads an attribute as an integer; empty when the attribute is absent, no integer or out of range.
std::optional<int> integer_in(pugi::xml_node node, const char* attribute,
                              std::pair<long long, long long> range);

// Adds the device id, the class and the PCIe link of a <pci> to `facts`, unless they are
// placeholders.
void add_pci_facts(pugi::xml_node pci, Facts& facts);
// Adds the fact whether GPUDirect works for `node`, which is a <gpu> or a <net>.
void add_gdr(pugi::xml_node node, Facts& facts);

// Returns the architecture of an AMD GPU, such as "gfx942"; "" for GPUs of NVIDIA.
std::string gcn_of(pugi::xml_node gpu);

// Returns the rate of a <net>; empty when the file has no rate or a rate of 0 or -1.
std::optional<double> gbit_s_of(pugi::xml_node net);
// Returns the link layer of a <net>; "" when unknown. `pci` is null for a network interface without
// a PCI device.
std::string layer_of(pugi::xml_node pci, std::string_view net_name);
// The PCI class and the vendor of NICs of a link layer, by which layer_of() recognises it; no
// vendor if several make such NICs.
struct NicIds {
  std::string_view pci_class = "0x02", vendor = {};
};
NicIds ids_of_layer(std::string_view layer);
// True for a <net> that shows itself as a port of an RDMA device, whatever its name is.
bool is_rdma_port(pugi::xml_node net);
// True for the names that Linux and its tools give to bridges, tunnels and interfaces of
// containers.
bool is_virtual_name(std::string_view net_name);

}  // namespace atoll_v1::atoll::nccl

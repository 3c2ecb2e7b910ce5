#include "inspect/importers/nccl_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "facts.hpp"
#include "inspect/importers/xml_document.hpp"
#include "parse_number.hpp"
#include "pcie_rate.hpp"
#include "rdma_name.hpp"
#include "sources/pci_address.hpp"
#include "sources/small_file.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::nccl {

using namespace topology_sources;
namespace {

constexpr int nvidia = 0x10de;
constexpr int ibm = 0x1014;
constexpr std::uint64_t smallest_guid = 0x10000;

bool is_power(pugi::xml_node node) {
  while (node && std::string_view(node.name()) != "cpu") node = node.parent();
  return std::string_view(node.attribute("arch").value()).starts_with("ppc");
}

std::uint64_t turned(std::uint64_t number) {
  std::uint64_t result = 0;
  for (int byte = 0; byte < 8; ++byte) result = result << 8 | (number >> (8 * byte) & 0xff);
  return result;
}

constexpr auto most_mbit_s = static_cast<long long>(1000 * most_gbit_s);

// Returns "32" for "32.0 GT/s PCIe" or "32 GT/s PCIe/s"; "" for a speed that PCIe does not define.
std::string transfer_rate(std::string_view text) {
  const double rate = take_number<double>(text).value_or(0);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text.starts_with("GT/s") && is_pcie_rate(rate) ? fmt::format("{}", rate) : "";
}

}  // namespace

std::vector<HostElements> hosts_of(pugi::xml_node system) {
  std::vector<HostElements> hosts;
  std::map<std::string, std::size_t> numbers;
  std::set<std::string> hashes;
  for (const pugi::xml_node cpu : system.children("cpu"))
    if (const std::string hash = cpu.attribute("host_hash").value(); !hash.empty())
      hashes.insert(hash);
  for (const pugi::xml_node cpu : system.children("cpu")) {
    std::string hash = cpu.attribute("host_hash").value();
    if (hash.empty() && hashes.size() == 1) hash = *hashes.begin();
    const auto [at, is_new] = numbers.try_emplace(hash, hosts.size());
    if (is_new) hosts.push_back({hash, {}});
    hosts[at->second].cpus.push_back(cpu);
  }
  return hosts;
}

std::string class_of(pugi::xml_node pci) { return hex_digits(pci.attribute("class").value()); }

int vendor_of(pugi::xml_node pci) {
  const auto vendor = importers::XmlDocument::integer(pci, "vendor");
  return vendor && *vendor > 0 && *vendor < 0xffff ? static_cast<int>(*vendor) : 0;
}

bool is_gpu_class(std::string_view pci_class) {
  return pci_class == "03" || starts_with_any(pci_class, {"0300", "0302", "0380", "1200"});
}

bool is_gpu(pugi::xml_node pci) {
  if (pci.child("gpu")) return true;
  const std::string pci_class = class_of(pci);
  const int vendor = vendor_of(pci);
  const bool may_be_display = pci_class.starts_with("0300") && vendor != 0;
  return is_gpu_class(pci_class) && (!may_be_display || vendor == nvidia || vendor == amd);
}

bool add_element(PciElements& elements, const std::string& busid, pugi::xml_node pci) {
  const auto [at, is_new] = elements.try_emplace(busid, pci);
  if (is_new || !is_gpu(pci)) return true;
  if (is_gpu(at->second)) return false;
  at->second = pci;
  return true;
}

bool is_network(std::string_view pci_class) {
  return pci_class == "02" || starts_with_any(pci_class, {"0200", "0207", "0208"});
}

std::string unnamed_nic(std::string_view busid) { return "nic-" + short_busid(busid); }

std::string short_busid(std::string_view busid) {
  if (busid.size() > 4 && busid.starts_with("0000")) busid.remove_prefix(4);
  return std::string(busid);
}

bool is_plain(std::string_view text) {
  return text.size() <= longest_text &&
         std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; });
}

bool is_link(pugi::xml_node element) {
  const std::string_view name = element.name();
  return name == "nvlink" || name == "xgmi";
}

std::string_view type_of_link(pugi::xml_node link) {
  const bool is_xgmi =
      std::string_view(link.name()) == "xgmi" || vendor_of(link.parent().parent()) == amd;
  return is_xgmi ? "xgmi" : "nvlink";
}

// NCCL treats every target that is neither a GPU nor a CPU as a switch, and class 0x068001 as a
// CPU. In files from POWER machines, the bridge to the CPU has class 0x068000, which means NVSwitch
// on other machines. The bridge is recognised by its vendor or by the architecture of the host,
// since no POWER machine has NVSwitches.
LinkEnd link_end(pugi::xml_node link, const PciElements& elements) {
  const pugi::xml_node own = link.parent().parent();
  const std::string_view text = link.attribute("target").value();
  const std::string target = topology_sources::normal_busid(text);
  const std::string target_class = hex_digits(link.attribute("tclass").value());
  if (!target.empty() && target == topology_sources::normal_busid(own.attribute("busid").value()))
    return LinkEnd::itself;
  if (const auto found = elements.find(target); found != elements.end()) {
    if (is_gpu(found->second)) return LinkEnd::gpu;
    if (vendor_of(found->second) == ibm) return LinkEnd::processor;
  }
  if (is_gpu_class(target_class)) return LinkEnd::unseen_gpu;
  if (target_class == "068001" || (target_class.starts_with("06") && is_power(own)))
    return LinkEnd::processor;
  return lower_case(text).starts_with("fffffff:") ? LinkEnd::hidden_switch : LinkEnd::own_switch;
}

std::string guid_of(std::string_view number) {
  const auto read = parse_number<std::uint64_t>(hex_digits(number), 16);
  if (!read || *read < smallest_guid) return "";
  const std::uint64_t value = turned(*read);
  return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", value >> 48, value >> 32 & 0xffff,
                     value >> 16 & 0xffff, value & 0xffff);
}

std::string number_of_guid(std::string_view guid) {
  std::string digits(guid);
  std::erase(digits, ':');
  const auto value = parse_number<std::uint64_t>(digits, 16);
  if (digits.size() != 16 || !value) return "";
  const std::string number = fmt::format("{:#x}", turned(*value));
  return guid_of(number) == guid ? number : "";
}

std::optional<int> integer_in(pugi::xml_node node, const char* attribute,
                              std::pair<long long, long long> range) {
  const auto value = importers::XmlDocument::integer(node, attribute);
  if (!value || *value < range.first || *value > range.second) return std::nullopt;
  return static_cast<int>(*value);
}

void add_pci_facts(pugi::xml_node pci, Facts& facts) {
  const int vendor = vendor_of(pci);
  if (const auto device = integer_in(pci, "device", {1, 0xfffe}); device && vendor != 0)
    set_fact(facts, fact::pci_device, fmt::format("{:04x}:{:04x}", vendor, *device));
  if (const std::string pci_class = class_of(pci); pci_class.size() >= 4)
    set_fact(facts, fact::pci_class, std::string_view(pci_class).substr(0, 4));
  set_fact(facts, fact::pci_gt_s, transfer_rate(pci.attribute("link_speed").value()));
  if (const auto width = integer_in(pci, "link_width", {1, 32}))
    set_fact(facts, fact::pci_width, std::to_string(*width));
}

void add_gdr(pugi::xml_node node, Facts& facts) {
  if (const auto gdr = integer_in(node, "gdr", {0, 1}))
    set_fact(facts, fact::gdr, *gdr == 1 ? "yes" : "no");
}

// Older RCCL files contain only the number of the architecture, and "910" for gfx90a.
std::string gcn_of(pugi::xml_node gpu) {
  std::string gcn = gpu.attribute("gcn").value();
  if (!is_plain(gcn)) return "";
  if (gcn.empty() || gcn.find_first_not_of("0123456789") != std::string::npos) return gcn;
  return gcn == "910" ? "gfx90a" : "gfx" + gcn;
}

// A speed of -1 is ignored: network plugins write it when the speed is unknown.
std::optional<double> gbit_s_of(pugi::xml_node net) {
  const auto mbit_s = integer_in(net, "speed", {1, most_mbit_s});
  return mbit_s ? std::optional(*mbit_s / 1000.0) : std::nullopt;
}

bool is_virtual_name(std::string_view name) {
  const bool is_numbered_bridge = name.size() > 2 && name.starts_with("br") &&
                                  name.find_first_not_of("0123456789", 2) == std::string::npos;
  return name == "lo" || is_numbered_bridge ||
         starts_with_any(
             name, {"veth",   "br-",  "docker", "virbr",     "vxlan",        "flannel", "cni",
                    "cali",   "tun",  "tap",    "bridge",    "vnet",         "lxc",     "lxd",
                    "podman", "kube", "dummy",  "wg",        "cilium",       "weave",   "ovs",
                    "gre",    "sit",  "ifb",    "tailscale", "nodelocaldns", "zt",      "genev"});
}

// Network plugins write the GUID of an RDMA device, but a small number for sockets. Where GUIDs are
// missing, a name that udev gives to RDMA devices counts if the port has a number or uses
// GPUDirect, since IP over InfiniBand may have the same name.
bool is_rdma_port(pugi::xml_node net) {
  if (!guid_of(net.attribute("guid").value()).empty()) return true;
  return !layer_of_rdma_name(net.attribute("name").value()).empty() &&
         (integer_in(net, "port", {1, 255}) || integer_in(net, "gdr", {1, 1}));
}

std::string layer_of(pugi::xml_node pci, std::string_view name) {
  constexpr int amazon = 0x1d0f, hewlett_packard = 0x17db, intel = 0x8086;
  const int vendor = vendor_of(pci);
  const std::string pci_class = class_of(pci);
  if (vendor == amazon) return "efa";
  if (vendor == hewlett_packard) return "slingshot";
  if (pci_class.starts_with("0207")) return "infiniband";
  if (pci_class.starts_with("0200")) return "ethernet";
  if (pci_class.starts_with("0208") && vendor == intel) return "omni-path";
  if (!pci && (name.starts_with("eth") || name.starts_with("en"))) return "ethernet";
  return "";
}

NicIds ids_of_layer(std::string_view layer) {
  if (layer == "infiniband") return {"0x020700"};
  if (layer == "ethernet") return {"0x020000"};
  if (layer == "efa") return {"0x020000", "0x1d0f"};
  if (layer == "slingshot") return {"0x020000", "0x17db"};
  if (layer == "omni-path") return {"0x020800", "0x8086"};
  return {};
}

}  // namespace atoll_v1::atoll::nccl

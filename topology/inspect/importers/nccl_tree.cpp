#include "inspect/importers/nccl_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>

#include "sources/pci_address.hpp"
#include "inspect/importers/xml_document.hpp"

namespace atoll_v1::atoll::nccl {
namespace {

constexpr int nvidia = 0x10de;
constexpr int ibm = 0x1014;
constexpr std::uint64_t smallest_guid = 0x10000;

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return result;
}

// "0x030200" -> "030200".
std::string hexadecimal(std::string_view text) {
  std::string digits = lower(text);
  if (digits.starts_with("0x")) digits.erase(0, 2);
  return digits.find_first_not_of("0123456789abcdef") == std::string::npos ? digits : "";
}

bool is_gpu_class(std::string_view pci_class) {
  return pci_class == "03" || pci_class.starts_with("0300") || pci_class.starts_with("0302") ||
         pci_class.starts_with("0380") || pci_class.starts_with("1200");
}

bool is_power(pugi::xml_node node) {
  while (node && std::string_view(node.name()) != "cpu") node = node.parent();
  return std::string_view(node.attribute("arch").value()).starts_with("ppc");
}

std::uint64_t turned(std::uint64_t number) {
  std::uint64_t result = 0;
  for (int byte = 0; byte < 8; ++byte) result = result << 8 | (number >> (8 * byte) & 0xff);
  return result;
}

// The whole text as a number to base 16.
bool read_number(std::string_view digits, std::uint64_t& number) {
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  return error == std::errc() && end == digits.data() + digits.size();
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

std::string class_of(pugi::xml_node pci) { return hexadecimal(pci.attribute("class").value()); }

int vendor_of(pugi::xml_node pci) {
  const auto vendor = importers::XmlDocument::integer(pci, "vendor");
  return vendor && *vendor > 0 && *vendor < 0xffff ? static_cast<int>(*vendor) : 0;
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
  return pci_class == "02" || pci_class.starts_with("0200") || pci_class.starts_with("0207") ||
         pci_class.starts_with("0208");
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

// NCCL takes everything that is neither GPU nor CPU for a switch, and 0x068001 for a CPU. Dumps of
// POWER machines call the bridge to the CPU 0x068000, which means NVSwitch elsewhere; there it is
// told by its vendor, or by the host's architecture, for which NVSwitches were never built.
LinkEnd link_end(pugi::xml_node link, const PciElements& elements) {
  const pugi::xml_node own = link.parent().parent();
  const std::string_view text = link.attribute("target").value();
  const std::string target = topology_sources::normal_busid(text);
  const std::string target_class = hexadecimal(link.attribute("tclass").value());
  if (!target.empty() && target == topology_sources::normal_busid(own.attribute("busid").value()))
    return LinkEnd::itself;
  if (const auto found = elements.find(target); found != elements.end()) {
    if (is_gpu(found->second)) return LinkEnd::gpu;
    if (vendor_of(found->second) == ibm) return LinkEnd::processor;
  }
  if (is_gpu_class(target_class)) return LinkEnd::unseen_gpu;
  if (target_class == "068001" || (target_class.starts_with("06") && is_power(own)))
    return LinkEnd::processor;
  return lower(text).starts_with("fffffff:") ? LinkEnd::hidden_switch : LinkEnd::own_switch;
}

std::string guid_of(std::string_view number) {
  std::uint64_t value = 0;
  if (!read_number(hexadecimal(number), value) || value < smallest_guid) return "";
  value = turned(value);
  return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", value >> 48, value >> 32 & 0xffff,
                     value >> 16 & 0xffff, value & 0xffff);
}

std::string number_of_guid(std::string_view guid) {
  std::string digits(guid);
  std::erase(digits, ':');
  std::uint64_t value = 0;
  if (digits.size() != 16 || !read_number(digits, value)) return "";
  const std::string number = fmt::format("{:#x}", turned(value));
  return guid_of(number) == guid ? number : "";
}

}  // namespace atoll_v1::atoll::nccl

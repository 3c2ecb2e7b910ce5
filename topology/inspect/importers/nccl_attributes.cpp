#include "inspect/importers/nccl_attributes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "facts.hpp"
#include "inspect/importers/nccl_tree.hpp"
#include "inspect/importers/xml_document.hpp"

namespace atoll_v1::atoll::importers {
namespace {

constexpr std::size_t most_mask_words = 2'048;
constexpr auto most_mbit_s = static_cast<long long>(1000 * nccl::most_gbit_s);

// "32.0 GT/s PCIe", "32 GT/s PCIe/s" -> "32"; "" for what is no speed of PCIe.
std::string transfer_rate(std::string_view text) {
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc()) return "";
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  constexpr std::array rates{2.5, 5.0, 8.0, 16.0, 32.0, 64.0};
  if (!text.starts_with("GT/s") || std::ranges::find(rates, rate) == rates.end()) return "";
  return fmt::format("{}", rate);
}

}  // namespace

std::optional<int> integer_in(pugi::xml_node node, const char* attribute,
                              std::pair<long long, long long> range) {
  const auto value = XmlDocument::integer(node, attribute);
  if (!value || *value < range.first || *value > range.second) return std::nullopt;
  return static_cast<int>(*value);
}

void add_mask(std::string_view text, std::vector<std::uint32_t>& set) {
  std::vector<std::uint32_t> words;
  while (!text.empty()) {
    const auto comma = text.rfind(',');
    const std::string_view word = comma == std::string_view::npos ? text : text.substr(comma + 1);
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, 16);
    if (error != std::errc() || end != word.data() + word.size() || words.size() == most_mask_words)
      return;
    words.push_back(value);
    text = text.substr(0, comma == std::string_view::npos ? 0 : comma);
  }
  set.resize(std::max(set.size(), words.size()));
  for (std::size_t i = 0; i < words.size(); ++i) set[i] |= words[i];
}

void add_pci_facts(pugi::xml_node pci, Facts& facts) {
  const int vendor = nccl::vendor_of(pci);
  if (const auto device = integer_in(pci, "device", {1, 0xfffe}); device && vendor != 0)
    set_fact(facts, fact::pci_device, fmt::format("{:04x}:{:04x}", vendor, *device));
  if (const std::string pci_class = nccl::class_of(pci); pci_class.size() >= 4)
    set_fact(facts, fact::pci_class, std::string_view(pci_class).substr(0, 4));
  set_fact(facts, fact::pci_gt_s, transfer_rate(pci.attribute("link_speed").value()));
  if (const auto width = integer_in(pci, "link_width", {1, 32}))
    set_fact(facts, fact::pci_width, std::to_string(*width));
}

void add_gdr(pugi::xml_node node, Facts& facts) {
  if (const auto gdr = integer_in(node, "gdr", {0, 1}))
    set_fact(facts, fact::gdr, *gdr == 1 ? "yes" : "no");
}

// Older files of RCCL give the number alone; 910 is their name for gfx90a.
std::string gcn_of(pugi::xml_node gpu) {
  std::string gcn = gpu.attribute("gcn").value();
  if (!nccl::is_plain(gcn)) return "";
  if (gcn.empty() || gcn.find_first_not_of("0123456789") != std::string::npos) return gcn;
  return gcn == "910" ? "gfx90a" : "gfx" + gcn;
}

// Network plugins say -1 when they do not know.
std::optional<double> gbit_s_of(pugi::xml_node net) {
  const auto mbit_s = integer_in(net, "speed", {1, most_mbit_s});
  return mbit_s ? std::optional(*mbit_s / 1000.0) : std::nullopt;
}

bool is_virtual_name(std::string_view name) {
  constexpr std::array prefixes{"veth",   "br-",  "docker", "virbr",    "vxlan",  "flannel", "cni",
                                "cali",   "tun",  "tap",    "bridge",   "vnet",   "lxc",     "lxd",
                                "podman", "kube", "dummy",  "wg",       "cilium", "weave",   "ovs",
                                "gre",    "sit",  "ifb",    "tailscale"};
  const bool is_numbered_bridge = name.size() > 2 && name.starts_with("br") &&
                                  name.find_first_not_of("0123456789", 2) == std::string::npos;
  return name == "lo" || is_numbered_bridge ||
         std::ranges::any_of(prefixes,
                             [&](const char* prefix) { return name.starts_with(prefix); });
}

std::string layer_of(pugi::xml_node pci, std::string_view name) {
  constexpr int amazon = 0x1d0f, hewlett_packard = 0x17db, intel = 0x8086;
  const int vendor = nccl::vendor_of(pci);
  const std::string pci_class = nccl::class_of(pci);
  if (vendor == amazon) return "efa";
  if (vendor == hewlett_packard) return "slingshot";
  if (pci_class.starts_with("0207")) return "infiniband";
  if (pci_class.starts_with("0200")) return "ethernet";
  if (pci_class.starts_with("0208") && vendor == intel) return "omni-path";
  if (!pci && (name.starts_with("eth") || name.starts_with("en"))) return "ethernet";
  return "";
}

}  // namespace atoll_v1::atoll::importers

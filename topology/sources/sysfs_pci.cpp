// Reads the PCI side of GPUs and NICs from /sys/bus/pci/devices: current and maximum link speed,
// NUMA node, path to the root complex, and settings of the devices and of the bridges above them.
// Settings are in configuration space, of which the kernel shows 64 bytes to everybody and the rest
// to root.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "facts.hpp"
#include "parse_number.hpp"
#include "sources/pci_address.hpp"
#include "sources/pci_config.hpp"
#include "sources/small_file.hpp"
#include "sources/source.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t longest_way = 64;  // maximum number of bridges; real machines have up to six

// Properties that GPUs and NICs share.
struct PciDevice {
  const std::string& busid;
  int& numa;
  std::string& pci_path;
  Facts& facts;
};

// Parses a link speed: "32.0 GT/s PCIe" -> "32"; "" for "Unknown".
std::string gigatransfers(std::string_view text) {
  const double value = take_number<double>(text).value_or(0);
  if (!text.starts_with(" GT/s") || !(value > 0) || value > 1000) return "";
  return fmt::format("{:g}", value);
}

// Devices report a width of 0 or all ones when they do not know the width.
std::string lanes(const fs::path& file) {
  const long long width = read_number(file).value_or(0);
  return width > 0 && width <= 32 ? fmt::to_string(width) : "";
}

// Returns the number of replayed packets, from the device's advanced error reporting (AER).
std::string replays(const fs::path& folder) {
  const auto text = read_start(folder / "aer_dev_correctable", 4096);
  if (!text) return "";
  long long sum = 0;
  bool is_any_readable = false;
  for (const std::string_view name : {"Rollover ", "Timeout "}) {
    const auto at = text->find(name);
    if (at == std::string::npos || (at > 0 && (*text)[at - 1] != '\n')) continue;
    std::string_view rest = std::string_view(*text).substr(at + name.size());
    const long long count = take_number<long long>(rest).value_or(-1);
    if (count < 0 || count > (1LL << 60)) continue;
    is_any_readable = true;
    sum += count;
  }
  return is_any_readable ? fmt::to_string(sum) : "";
}

// Splits the device's real path from the root complex on: "pci0000:15", the bridges, the device.
// Empty when the path has another form.
std::vector<std::string> way_to(const fs::path& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  std::vector<std::string> way;
  if (error) return way;
  for (const fs::path& part : real) {
    const std::string name = part.string();
    if (name.starts_with("pci") && name.find(':') != std::string::npos) {
      way = {name};  // nested root complexes: the path starts at the last
    } else if (!way.empty()) {
      const std::string busid = normal_busid(name);
      if (busid.empty() || way.size() > longest_way) return {};
      way.push_back(busid);
    }
  }
  return way.size() < 2 ? std::vector<std::string>() : way;
}

class PciReader {
 public:
  explicit PciReader(fs::path sysfs) : sysfs_(std::move(sysfs)) {}

  void describe(PciDevice device) {
    const fs::path folder = pci_folder(sysfs_, device.busid);
    std::error_code error;
    if (folder.empty() || !fs::exists(folder, error)) return;
    describe_identity(folder, device.facts);
    describe_link(folder, device.facts);
    if (const auto numa = read_number(folder / "numa_node").value_or(-1);
        device.numa < 0 && numa >= 0 && numa < 65536)
      device.numa = static_cast<int>(numa);
    const std::vector<std::string> way = way_to(folder);
    if (device.pci_path.empty() && !way.empty())
      device.pci_path = fmt::format("{}", fmt::join(way.begin(), way.end() - 1, "/"));
    describe_settings(folder, device.facts);
    describe_bridges(way, device.facts);
  }

  bool is_any_cut() const { return is_any_cut_; }

 private:
  static void describe_identity(const fs::path& folder, Facts& facts) {
    const auto vendor = read_number(folder / "vendor"), device = read_number(folder / "device");
    if (vendor && device && *vendor > 0 && *vendor < 0xffff)
      set_fact(facts, fact::pci_device, fmt::format("{:04x}:{:04x}", *vendor, *device & 0xffff));
    if (const auto pci_class = read_number(folder / "class"); pci_class && *pci_class > 0)
      set_fact(facts, fact::pci_class, fmt::format("{:04x}", (*pci_class >> 8) & 0xffff));
  }

  static void describe_link(const fs::path& folder, Facts& facts) {
    set_fact(facts, fact::pci_gt_s, gigatransfers(first_line(folder / "current_link_speed")));
    set_fact(facts, fact::pci_gt_s_max, gigatransfers(first_line(folder / "max_link_speed")));
    set_fact(facts, fact::pci_width, lanes(folder / "current_link_width"));
    set_fact(facts, fact::pci_width_max, lanes(folder / "max_link_width"));
    set_fact(facts, fact::pci_replays, replays(folder));
  }

  PciSettings settings_of(const fs::path& folder) {
    const SmallFile file(folder / "config");
    if (!file.is_open()) return {};
    const PciSettings settings = read_pci_settings(
        [&file](std::size_t offset, std::span<char> bytes) {
          return file.read_at(offset, bytes).value_or(0);
        },
        file.size());
    is_any_cut_ = is_any_cut_ || settings.is_cut;
    return settings;
  }

  void describe_settings(const fs::path& folder, Facts& facts) {
    const PciSettings settings = settings_of(folder);
    if (settings.max_read_request)
      set_fact(facts, fact::pci_max_read_request, fmt::to_string(*settings.max_read_request));
    if (settings.relaxed_ordering)
      set_fact(facts, fact::pci_relaxed_ordering, yes_no(*settings.relaxed_ordering));
    if (settings.ats) set_fact(facts, fact::pci_ats, yes_no(*settings.ats));
  }

  // Returns whether a bridge redirects traffic to the root complex; empty when the bridge cannot be
  // read.
  std::optional<bool> redirects(const std::string& bridge) {
    const auto known = bridges_.find(bridge);
    if (known != bridges_.end()) return known->second;
    return bridges_[bridge] = settings_of(pci_folder(sysfs_, bridge)).acs_redirects;
  }

  // Records the bridges above a device whose ACS settings redirect traffic between devices to the
  // root complex. Above a device directly below the root complex there is no bridge.
  void describe_bridges(const std::vector<std::string>& way, Facts& facts) {
    if (way.size() < 3) return;
    std::vector<std::string> redirecting;
    for (std::size_t i = 1; i + 1 < way.size(); ++i) {
      const auto answer = redirects(way[i]);
      if (!answer) return;
      if (*answer) redirecting.push_back(way[i]);
    }
    set_fact(facts, fact::pci_acs,
             redirecting.empty() ? "off" : fmt::format("{}", fmt::join(redirecting, " ")));
  }

  fs::path sysfs_;
  // Maps a bridge's bus id to whether the bridge redirects traffic; empty when unknown.
  std::map<std::string, std::optional<bool>> bridges_;
  bool is_any_cut_ = false;
};

}  // namespace

void sysfs_pci(const LiveRequest& request, Topology& topology) {
  const auto host = std::ranges::find(topology.hosts, request.host_id, &TopologyHost::id);
  if (host == topology.hosts.end()) return;
  const std::string reason = fmt::format("{}sysfs_pci", fact::source_prefix);
  if (std::error_code error; !fs::exists(request.sysfs / "bus/pci/devices", error)) {
    set_fact(host->facts, reason, "no PCI devices under /sys");
    return;
  }
  PciReader reader(request.sysfs);
  for (TopologyGpu& gpu : topology.gpus)
    if (gpu.host == host->id) reader.describe({gpu.busid, gpu.numa, gpu.pci_path, gpu.facts});
  for (TopologyNic& nic : topology.nics)
    if (nic.host == host->id) reader.describe({nic.busid, nic.numa, nic.pci_path, nic.facts});
  if (reader.is_any_cut())
    set_fact(host->facts, reason, "reading PCIe extended configuration space needs root");
}

}  // namespace atoll_v1::atoll::topology_sources

// Reads ports of network adapters from /sys/class/infiniband (InfiniBand, RoCE, EFA, Omni-Path) and
// /sys/class/net. hwloc reports neither rate nor link layer of a port, and may see no port in a
// container. The kernel documents the files in Documentation/ABI/stable/sysfs-class-infiniband.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "facts.hpp"
#include "parse_number.hpp"
#include "port_counters.hpp"
#include "sources/pci_address.hpp"
#include "sources/small_file.hpp"
#include "sources/source.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

namespace fs = std::filesystem;

constexpr unsigned most_gids = 256;
// The GID table may have gaps, but not long ones: reading stops after this many empty entries.
constexpr unsigned most_empty_gids = 32;

// The rate and the number of lanes of a port, as in "400 Gb/sec (4X NDR)".
struct Rate {
  double gbit_s = 0;
  int lanes = 0;  // number of lanes of the port; 0 if unknown
};

std::optional<Rate> parse_rate(std::string_view text) {
  Rate rate;
  rate.gbit_s = take_number<double>(text).value_or(0);
  constexpr std::string_view unit = " Gb/sec", lanes = " (";
  if (!text.starts_with(unit) || !(rate.gbit_s > 0) || rate.gbit_s > 1e6) return std::nullopt;
  text.remove_prefix(unit.size());
  if (text.starts_with(lanes)) {
    text.remove_prefix(lanes.size());
    rate.lanes = take_number<int>(text).value_or(0);
  }
  return rate;
}

// Returns the name of a numbered state: "4: ACTIVE" -> "active".
std::string second_word(const std::string& text) {
  const auto colon = text.find(": ");
  return lower_case(colon == std::string::npos ? text : text.substr(colon + 2));
}

std::string layer_of(std::string_view link_layer, long long vendor, std::string_view adapter) {
  if (vendor == vendor_amazon) return "efa";
  const std::string layer = lower_case(link_layer);
  if (layer == "infiniband" && (vendor == vendor_intel || adapter.starts_with("hfi1")))
    return "omni-path";
  return layer == "infiniband" || layer == "ethernet" ? layer : "";
}

bool is_zero_guid(std::string_view guid) {
  return guid.find_first_not_of("0:x") == std::string_view::npos;
}

// Sets a fact to the list of its counters that are not zero, or "none"; not at all when no counter
// can be read.
void set_counters(Facts& facts, fact::Name fact, const fs::path& port) {
  std::string text;
  bool is_any_readable = false;
  for (const PortCounters& counters : port_counters) {
    if (counters.fact != fact) continue;
    for (const std::string_view name : counters.names) {
      auto count = read_number(port / "counters" / name);
      if (!count) count = read_number(port / "hw_counters" / name);
      if (!count) continue;
      is_any_readable = true;
      if (*count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, *count);
    }
  }
  set_fact(facts, fact, text.empty() && is_any_readable ? "none" : text);
}

// A routable GID is neither link-local (fe80::/10) nor 169.254/16 mapped into IPv6.
bool is_routable(std::string_view gid) {
  for (const std::string_view local :
       {"fe8", "fe9", "fea", "feb", "0000:0000:0000:0000:0000:ffff:a9fe:"})
    if (gid.starts_with(local)) return false;
  return !is_zero_guid(gid);
}

std::string roce_gid(const fs::path& port) {
  bool is_any_readable = false;
  unsigned empty = 0;
  for (unsigned i = 0; i < most_gids && empty < most_empty_gids; ++i) {
    std::string number = fmt::to_string(i);
    const std::string gid = first_line(port / "gids" / number);
    if (gid.empty() || is_zero_guid(gid)) {
      ++empty;
      continue;
    }
    empty = 0;
    const std::string type = first_line(port / "gid_attrs/types" / number);
    is_any_readable = is_any_readable || !type.empty();
    if (type == "RoCE v2" && is_routable(lower_case(gid))) return number;
  }
  return is_any_readable ? "none" : "";
}

// If one PCI function has several ports, dev_port tells their interfaces apart; it counts from 0.
std::string netdev_of(const fs::path& adapter, const fs::path& port, int number) {
  if (std::string name = first_line(port / "gid_attrs/ndevs/0"); !name.empty()) return name;
  const std::vector<std::string> names = entries(adapter / "device/net");
  for (const std::string& name : names)
    if (names.size() > 1 && read_number(adapter / "device/net" / name / "dev_port") == number - 1)
      return name;
  return names.empty() ? "" : names[0];
}

void set_number(Facts& facts, std::string_view name, const fs::path& file) {
  if (const auto number = read_number(file)) set_fact(facts, name, fmt::to_string(*number));
}

struct Port {
  fs::path adapter;  // the adapter's folder in sysfs
  std::string adapter_name;
  int number = 1;
  fs::path folder() const { return adapter / "ports" / fmt::to_string(number); }
};

void describe_link(const fs::path& port, TopologyNic& nic) {
  if (const std::string state = first_line(port / "state"); !state.empty())
    nic.state = second_word(state);
  if (nic.state == "active_defer") nic.state = "active";
  if (const std::string state = first_line(port / "phys_state"); !state.empty())
    set_fact(nic.facts, fact::phys_state, second_word(state));
  // A port that is down reports the slowest rate of its kind, which is not the adapter's rate.
  if (nic.state == "active") {
    if (const auto rate = parse_rate(first_line(port / "rate"))) {
      nic.rate_gbit_s = rate->gbit_s;
      nic.evidence = "sysfs";
      if (rate->lanes > 0) set_fact(nic.facts, fact::width, fmt::to_string(rate->lanes));
    }
  }
  for (const fact::Name fact : {fact::errors, fact::congestion})
    set_counters(nic.facts, fact, port);
}

void describe(const LiveRequest& request, const Port& port, TopologyNic& nic) {
  const fs::path folder = port.folder();
  const long long vendor = read_number(port.adapter / "device/vendor").value_or(0);
  const std::string layer = layer_of(first_line(folder / "link_layer"), vendor, port.adapter_name);
  if (!layer.empty()) nic.layer = layer;
  describe_link(folder, nic);
  if (nic.adapter.empty() || is_zero_guid(nic.adapter)) {
    nic.adapter = first_line(port.adapter / "sys_image_guid");
    // All zeros means no GUID, which must not make several adapters look like one.
    if (is_zero_guid(nic.adapter)) nic.adapter.clear();
  }
  set_fact(nic.facts, fact::firmware, first_line(port.adapter / "fw_ver"));
  if (const std::string guid = first_line(port.adapter / "node_guid"); !is_zero_guid(guid))
    set_fact(nic.facts, fact::node_guid, guid);
  if (nic.layer == "infiniband" || nic.layer == "omni-path") {
    set_number(nic.facts, fact::lid, folder / "lid");
    set_number(nic.facts, fact::sm_lid, folder / "sm_lid");
  }
  set_fact(nic.facts, fact::netdev, netdev_of(port.adapter, folder, port.number));
  if (nic.layer != "ethernet") return;
  set_fact(nic.facts, fact::gid_roce_v2, roce_gid(folder));
  if (const auto netdev = get_fact(nic.facts, fact::netdev); !netdev.empty())
    set_number(nic.facts, fact::mtu, request.sysfs / "class/net" / netdev / "mtu");
}

// Returns the bus id of a class device (/sys/class/net/eth0/device); "" if it is not a PCI device.
std::string busid_of_class_device(const fs::path& device) {
  std::error_code error;
  fs::path real = fs::canonical(device, error);
  if (error) return "";
  // A virtio device is below the PCI device that provides it.
  if (real.filename().string().starts_with("virtio")) real = real.parent_path();
  return normal_busid(real.filename().string());
}

// Returns the NIC of a port; adds it when no earlier source saw it.
TopologyNic& nic_of(const LiveRequest& request, const Port& port, Topology& topology) {
  std::string name = printable(port.adapter_name, 64);
  if (port.number != 1) name += fmt::format(":{}", port.number);
  for (TopologyNic& nic : topology.nics)
    if (nic.host == request.host_id && nic.name == name) return nic;
  TopologyNic nic;
  nic.id = fmt::format("{}/{}", request.host_id, name);
  nic.host = request.host_id;
  nic.name = std::move(name);
  std::error_code error;
  nic.busid = busid_of_class_device(port.adapter / "device");
  // RDMA adapters that are implemented in software have no PCI device.
  nic.is_virtual = !fs::exists(port.adapter / "device", error);
  topology.nics.push_back(std::move(nic));
  return topology.nics.back();
}

// --- network interfaces ---
//
// Hardware interfaces have a `device` folder; bridges, veth pairs and tunnels have none. Speeds are
// Mbit/s; for links that are down and for some virtual machines the kernel reports -1 or an error.

constexpr int arp_ethernet = 1;  // interface types from linux/if_arp.h
constexpr int arp_loopback = 772;
constexpr long long vendor_slingshot = 0x17db;
constexpr std::size_t longest_list = 4000;  // bytes; texts in atoll's JSON form have at most 4,096
constexpr std::size_t most_virtual = 64;    // maximum number to add; container hosts have hundreds

struct Netdev {
  std::string name;
  fs::path folder;
  int kind = 0;
  bool is_hardware = false;
  long long vendor = 0;
};

std::vector<Netdev> list(const LiveRequest& request) {
  std::vector<Netdev> all;
  const fs::path folder = request.sysfs / "class/net";
  for (const std::string& name : entries(folder)) {
    std::error_code error;
    Netdev netdev{.name = name, .folder = folder / name};
    if (!fs::is_directory(netdev.folder, error)) continue;  // skips files such as bonding_masters
    netdev.kind = static_cast<int>(read_number(netdev.folder / "type").value_or(0));
    netdev.is_hardware = fs::exists(netdev.folder / "device", error);
    netdev.vendor = read_number(netdev.folder / "device/vendor").value_or(0);
    all.push_back(std::move(netdev));
  }
  // Hardware interfaces come first, so that they remain when a long list is cut.
  std::stable_partition(all.begin(), all.end(),
                        [](const Netdev& netdev) { return netdev.is_hardware; });
  return all;
}

std::string state_of(const Netdev& netdev) {
  const std::string state = first_line(netdev.folder / "operstate");
  if (state == "up") return "active";
  return state.empty() || state == "unknown" ? "" : "down";
}

void describe(const Netdev& netdev, TopologyNic& nic) {
  if (std::string state = state_of(netdev); !state.empty()) nic.state = state;
  const long long speed = read_number(netdev.folder / "speed").value_or(-1);
  if (speed > 0 && nic.state != "down") {
    nic.rate_gbit_s = static_cast<double>(speed) / 1000;
    nic.evidence = "sysfs";
  }
  set_fact(nic.facts, fact::netdev, netdev.name);
  if (const long long mtu = read_number(netdev.folder / "mtu").value_or(0); mtu > 0)
    set_fact(nic.facts, fact::mtu, fmt::to_string(mtu));
}

TopologyNic make_nic(const Netdev& netdev, const std::string& name, const std::string& host) {
  TopologyNic nic;
  nic.id = fmt::format("{}/{}", host, name);
  nic.host = host;
  nic.name = name;
  nic.busid = busid_of_class_device(netdev.folder / "device");
  nic.layer = netdev.kind == arp_ethernet ? "ethernet" : "";
  nic.is_virtual = !netdev.is_hardware;
  describe(netdev, nic);
  return nic;
}

bool is_taken(const Topology& topology, const std::string& id) {
  return std::ranges::find(topology.nics, id, &TopologyNic::id) != topology.nics.end();
}

// libfabric, and NCCL through it, names the adapter "cxi0" instead of its interface "hsn0".
void add_slingshot(const Netdev& netdev, const std::string& host, Topology& topology) {
  const std::string busid = busid_of_class_device(netdev.folder / "device");
  for (TopologyNic& nic : topology.nics) {
    if (nic.host != host || nic.busid != busid || busid.empty()) continue;
    nic.layer = "slingshot";
    describe(netdev, nic);
    return;
  }
  const std::vector<std::string> adapters = entries(netdev.folder / "device/cxi");
  TopologyNic nic = make_nic(netdev, adapters.empty() ? netdev.name : adapters[0], host);
  nic.layer = "slingshot";
  if (!is_taken(topology, nic.id)) topology.nics.push_back(std::move(nic));
}

// Lists the interfaces in the host's facts and adds Slingshot interfaces as NICs. When the host has
// no NIC yet, adds all other interfaces as well, except the loopback interface.
void add_netdevs(const LiveRequest& request, TopologyHost& host, Topology& topology) {
  const std::vector<Netdev> netdevs = list(request);
  std::string names;
  for (const Netdev& netdev : netdevs) {
    if (names.size() + netdev.name.size() + 1 > longest_list) break;
    names += (names.empty() ? "" : " ") + printable(netdev.name, 64);
  }
  set_fact(host.facts, fact::net_interfaces, names);
  for (const Netdev& netdev : netdevs)
    if (netdev.vendor == vendor_slingshot) add_slingshot(netdev, host.id, topology);
  if (std::ranges::find(topology.nics, host.id, &TopologyNic::host) != topology.nics.end()) return;
  std::size_t virtual_nics = 0;
  for (const Netdev& netdev : netdevs) {
    if (netdev.kind == arp_loopback || (netdev.is_hardware && netdev.kind != arp_ethernet))
      continue;
    if (!netdev.is_hardware && ++virtual_nics > most_virtual) continue;
    TopologyNic nic = make_nic(netdev, printable(netdev.name, 64), host.id);
    if (!is_taken(topology, nic.id)) topology.nics.push_back(std::move(nic));
  }
}

}  // namespace

void sysfs_ports(const LiveRequest& request, Topology& topology) {
  const fs::path adapters = request.sysfs / "class/infiniband";
  for (const std::string& adapter : entries(adapters))
    for (const std::string& name : entries(adapters / adapter / "ports")) {
      const Port port{adapters / adapter, adapter, parse_number<int>(name).value_or(0)};
      if (port.number > 0 && port.number <= 255)
        describe(request, port, nic_of(request, port, topology));
    }
  const auto host = std::ranges::find(topology.hosts, request.host_id, &TopologyHost::id);
  if (host != topology.hosts.end()) add_netdevs(request, *host, topology);
}

}  // namespace atoll_v1::atoll::topology_sources

// Hardware interfaces have a `device` folder; bridges, veth pairs and tunnels have none. Speeds are
// Mbit/s; for links that are down and for some virtual machines the kernel reports -1 or an error.
#include "sources/sysfs_netdevs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "facts.hpp"
#include "sources/pci_address.hpp"
#include "sources/small_file.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

namespace fs = std::filesystem;

constexpr int arp_ethernet = 1;  // interface types of linux/if_arp.h
constexpr int arp_loopback = 772;
constexpr long long vendor_slingshot = 0x17db;
constexpr std::size_t longest_list = 4000;  // texts of atoll's JSON form may have 4,096 bytes
constexpr std::size_t most_virtual = 64;    // container hosts have hundreds of virtual interfaces

struct Netdev {
  std::string name;
  fs::path folder;
  int kind = 0;
  bool is_hardware = false;
  long long vendor = 0;
};

std::vector<Netdev> list(const LiveRequest& request) {
  std::vector<Netdev> all;
  const fs::path folder = fs::path(request.sysfs) / "class/net";
  for (const std::string& name : entries(folder)) {
    std::error_code error;
    Netdev netdev{.name = name, .folder = folder / name};
    if (!fs::is_directory(netdev.folder, error)) continue;  // "bonding_masters" is a file
    netdev.kind = static_cast<int>(read_number(netdev.folder / "type").value_or(0));
    netdev.is_hardware = fs::exists(netdev.folder / "device", error);
    netdev.vendor = read_number(netdev.folder / "device/vendor").value_or(0);
    all.push_back(std::move(netdev));
  }
  // Hardware comes first, so that a list that is cut keeps it.
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

}  // namespace

std::string busid_of_class_device(const fs::path& device) {
  std::error_code error;
  fs::path real = fs::canonical(device, error);
  if (error) return "";
  // A virtio device is below the PCI device that provides it.
  if (real.filename().string().starts_with("virtio")) real = real.parent_path();
  return normal_busid(real.filename().string());
}

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

}  // namespace atoll_v1::atoll::topology_sources

// The devices of a host as hwloc has them: PCI functions below bridges below host bridges, and
// what the operating system calls them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "inspect/exporters/hwloc_layout.hpp"
#include "sources/hwloc_machine.hpp"

namespace atoll_v1::atoll {

// Who numbers a GPU; its OS device is called after it: "nvml3", "rsmi3", "gpu3".
enum class GpuDriver {
  nvml,
  rsmi,
  unknown
};

struct GpuName {
  GpuDriver driver = GpuDriver::unknown;
  int number = 0;
  std::string text() const;
};

// An OS device for the ports of one adapter.
struct AdapterEntry {
  std::string name;
  std::vector<const TopologyNic*> ports;
};

struct PciSlot {
  topology_sources::HwlocPciDevice pci;
  bool has_address = false;
  std::string root = {};  // "pci0000:17"; "" when the way is unknown
  std::vector<topology_sources::HwlocPciDevice> bridges = {};
  std::size_t place = 0;  // in HwlocLayout::parts
  std::vector<const TopologyGpu*> gpus = {};
  std::vector<AdapterEntry> adapters = {};
};

struct HwlocDevices {
  std::vector<std::unique_ptr<PciSlot>> slots;  // by bus id; those without come last
  std::map<std::string, GpuName> gpus;          // by TopologyGpu::id
};

// What cannot be placed as it is known goes to `lost`.
HwlocDevices arrange_devices(const Topology& topology, const HwlocLayout& layout,
                             std::vector<std::string>& lost);

// Whether hwloc shows such a NIC as a device of OpenFabrics; else it is a network interface.
bool is_openfabrics(const TopologyNic& nic);

// "4" for "active", as hwloc's infos have the states of ports; "" for a word that is none.
std::string_view port_state_number(std::string_view state);

// What else the format has no room for: facts, rates, partitions, ...
void find_lost(const Topology& topology, const HwlocDevices& devices,
               std::vector<std::string>& lost);

}  // namespace atoll_v1::atoll

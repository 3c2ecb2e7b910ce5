// Arranges the devices of a host as hwloc does: OS devices below PCI functions, below bridges,
// below host bridges.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "inspect/exporters/hwloc_layout.hpp"
#include "sources/hwloc_machine.hpp"

namespace atoll_v1::atoll {

// The driver that numbers a GPU. hwloc's OS device is named after it: "nvml3", "rsmi3", "gpu3".
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

// The OS device of an adapter with its ports.
struct AdapterEntry {
  std::string name;
  std::vector<const TopologyNic*> ports;
};

struct PciSlot {
  topology_sources::HwlocPciDevice pci;
  bool has_address = false;
  std::string root = {};  // "pci0000:17"; "" when the path is unknown
  std::vector<topology_sources::HwlocPciDevice> bridges = {};
  std::size_t place = 0;  // position in HwlocLayout::parts
  std::vector<const TopologyGpu*> gpus = {};
  std::vector<AdapterEntry> adapters = {};
};

struct HwlocDevices {
  std::vector<std::unique_ptr<PciSlot>> slots;  // sorted by bus id; slots without one come last
  std::map<std::string, GpuName> gpus;          // TopologyGpu::id -> name
};

// Adds a line to `lost` for each property that the arrangement cannot keep.
HwlocDevices arrange_devices(const Topology& topology, const HwlocLayout& layout,
                             std::vector<std::string>& lost);

// True if hwloc shows the NIC as an OpenFabrics device instead of a network interface.
bool is_openfabrics(const TopologyNic& nic);

// hwloc's number for the state of a port: "4" for "active"; "" for an unknown state.
std::string_view port_state_number(std::string_view state);

// Adds a line to `lost` for everything else that the format cannot hold: facts, rates, partitions.
void find_lost(const Topology& topology, const HwlocDevices& devices,
               std::vector<std::string>& lost);

}  // namespace atoll_v1::atoll

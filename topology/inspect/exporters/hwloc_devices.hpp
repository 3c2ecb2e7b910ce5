// Arranges the parts of a host as hwloc needs them: processors (hwloc_layout.cpp) and devices
// (hwloc_devices.cpp).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"
#include "sources/hwloc_cpu_set.hpp"
#include "sources/hwloc_machine.hpp"

namespace atoll_v1::atoll {

enum class LayoutKind {
  machine,
  package,
  group  // hwloc Group around a NUMA node that is neither a whole package nor the machine
};

struct LayoutPart {
  LayoutKind kind = LayoutKind::machine;
  int number = -1;               // number of the package; -1 for a part that is no package
  std::optional<int> numa = {};  // number of the NUMA node that is attached to this part
  std::vector<std::size_t> children = {};
  int first_core = 0, cores = 0;

  bool holds(const LayoutPart& inner) const {
    return first_core <= inner.first_core && inner.first_core + inner.cores <= first_core + cores;
  }
};

// The processors of a host as hwloc objects: packages, NUMA nodes, cores and threads. A Topology
// contains only the numbers of these objects, so cores and nodes are distributed evenly. If devices
// show which NUMA node belongs to which package, nodes are assigned to these packages.
class HwlocLayout {
 public:
  // The layout contains all NUMA nodes and packages that `devices` mention. Throws
  // Error(unsupported) when the host has more parts than this exporter supports.
  HwlocLayout(const TopologyHost& host, const Topology& devices);

  const std::vector<LayoutPart>& parts() const { return parts_; }  // part 0 is the machine
  const std::vector<int>& numas() const { return numas_; }         // sorted numbers of NUMA nodes
  int cores() const { return cores_; }
  // The hardware threads of a core are [first_thread(core), first_thread(core + 1)).
  int first_thread(int core) const;
  topology_sources::CpuSet cpus(const LayoutPart& part) const;
  topology_sources::CpuSet nodes(const LayoutPart& part) const;

  // Returns the position in parts() for a device near a NUMA node and a package; pass -1 when one
  // of them is unknown.
  std::size_t place(int numa, int package) const;
  // True if an importer that reads the exported file assigns this NUMA node and package to a device
  // at the part `place`.
  bool is_true(std::size_t place, int numa, int package) const;

 private:
  void number_parts(const TopologyHost& host, const Topology& devices);
  void build();
  std::vector<std::size_t> packages_of_numas(const Topology& devices) const;
  std::size_t add(LayoutPart part, std::size_t parent);
  void spread_cores(std::size_t part, int& leaf, int leaves);
  std::optional<std::size_t> find(int numa, int package) const;

  std::vector<LayoutPart> parts_;
  std::vector<int> numas_, packages_;
  std::vector<std::size_t> homes_;  // package of each NUMA node; empty if nodes contain packages
  int cores_ = 0, threads_ = 0;
};

// hwloc arranges the devices of a host as a tree: host bridges contain bridges, bridges contain PCI
// functions, and PCI functions contain OS devices.

// The driver that numbers a GPU. hwloc names the OS device of a GPU after the driver: "nvml3",
// "rsmi3"; for unknown drivers, this exporter writes "gpu3".
enum class GpuDriver {
  nvml,
  rsmi,
  unknown
};

struct GpuName {
  GpuDriver driver = GpuDriver::unknown;
  int number = 0;
};

// hwloc's names for the GPUs of a driver.
struct DriverNames {
  std::string_view device;   // beginning of the name of the OS device
  std::string_view subtype;  // attribute `subtype` of the OS device in the XML
  std::string_view uuid;     // name of the <info> that has the UUID
};
const DriverNames& names_of(GpuDriver driver);

// The OS device of a network adapter, with the ports of the adapter.
struct AdapterEntry {
  std::string name;
  std::vector<const TopologyNic*> ports;
};

// A PCI function with its devices and the bridges above it.
struct PciSlot {
  topology_sources::HwlocPciDevice pci;
  bool has_address = false;
  std::string root = {};  // host bridge, such as "pci0000:17"; "" when the PCI path is unknown
  std::vector<topology_sources::HwlocPciDevice> bridges = {};
  std::size_t place = 0;  // the slot's position in HwlocLayout::parts()
  std::vector<const TopologyGpu*> gpus = {};
  std::vector<AdapterEntry> adapters = {};
};

struct HwlocDevices {
  std::vector<std::unique_ptr<PciSlot>> slots;  // sorted by bus id; unknown bus ids come last
  std::map<std::string, GpuName> gpus;          // name of each GPU's OS device, by TopologyGpu::id
};

// Arranges the devices of a host. Adds a line to `lost` for each property that hwloc's tree cannot
// hold.
HwlocDevices arrange_devices(const Topology& topology, const HwlocLayout& layout,
                             std::vector<std::string>& lost);

// True if hwloc shows the NIC as an OpenFabrics device instead of a network interface.
bool is_openfabrics(const TopologyNic& nic);

// Returns hwloc's number for the state of a port: "4" for "active"; "" for an unknown state.
std::string_view port_state_number(std::string_view state);

// Adds lines to `lost` for facts, rates, partitions and other information that hwloc's XML cannot
// hold.
void find_lost(const Topology& topology, const HwlocDevices& devices,
               std::vector<std::string>& lost);

}  // namespace atoll_v1::atoll

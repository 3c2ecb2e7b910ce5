// The parts of hwloc's description of a machine that atoll uses, as plain data. hwloc_loaded.hpp
// fills it from libhwloc, and inspect/importers/hwloc_xml.cpp from hwloc's XML. hwloc_graph.cpp
// converts both to a Topology by the same rules.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/topology.hpp"
#include "sources/hwloc_cpu_set.hpp"
#include "sources/pci_address.hpp"

namespace atoll_v1::atoll::topology_sources {

struct HwlocNode {
  int number = -1;
  CpuSet cpus;
  std::uint64_t memory_bytes = 0;
  std::string subtype = {};  // kind of memory: "GPUMemory", "HBM", ...
};

struct HwlocPackage {
  int number = -1;
  CpuSet cpus;
  int cores = 0;
  // Counts the caches that hold data, by level and size in bytes, the highest level first.
  std::map<std::pair<int, std::uint64_t>, int, std::greater<>> caches = {};
};

struct HwlocPciDevice : PciAddress {
  unsigned vendor = 0, device = 0, pci_class = 0;  // vendor id, device id and class; 0 if unknown
  double link_gbyte_s = 0;  // bandwidth at the current link speed; 0 if unknown
  std::string subtype = {};
  std::string model = {};                    // name of the device in a PCI id database
  std::string path = {};                     // PCI path, as in TopologyGpu::pci_path
  std::optional<std::size_t> locality = {};  // index into HwlocMachine::localities
  std::ptrdiff_t offset = -1;                // byte offset in the XML text; -1 without a text
};

enum class HwlocOsKind {
  network,
  openfabrics,
  other
};

struct HwlocOsDevice {
  std::string name;
  std::string subtype = {};
  HwlocOsKind kind = HwlocOsKind::other;
  std::vector<std::pair<std::string, std::string>> infos = {};
  std::optional<std::size_t> pci = {};       // index into HwlocMachine::pci
  std::optional<std::size_t> locality = {};  // index into HwlocMachine::localities
  std::ptrdiff_t offset = -1;

  std::string_view info(std::string_view key) const;  // value of an info attribute; "" when absent
};

// Kind of object that a row of a matrix describes.
enum class HwlocEndKind {
  pci,      // a PCI device: HwlocEnd::index is its position in HwlocMachine::pci
  os,       // an OS device: HwlocEnd::index is its position in HwlocMachine::os
  package,  // a package: HwlocEnd::index is its position in HwlocMachine::packages
  other
};

struct HwlocEnd {
  HwlocEndKind kind = HwlocEndKind::other;
  std::size_t index = 0;
  friend auto operator<=>(const HwlocEnd&, const HwlocEnd&) = default;
};

struct HwlocMatrix {
  std::string name;
  std::vector<HwlocEnd> ends;
  std::vector<std::uint64_t> values;  // values of the matrix row by row, ends.size() in each row

  std::uint64_t at(std::size_t row, std::size_t column) const {
    return values[row * ends.size() + column];
  }
};

struct HwlocMachine {
  std::string origin = "hwloc";  // name of the source, for error messages
  std::string host_name = {};
  std::string version = {};  // version of the hwloc that described the machine
  std::string kernel = {};
  // Product name and asset tag of the chassis, as the firmware (DMI) gives them; "" if unknown.
  std::string product = {}, asset_tag = {};
  CpuSet usable = {};   // threads that the process running hwloc may use
  CpuSet threads = {};  // all hardware threads
  int thread_count = 0;
  std::vector<CpuSet> cores = {};
  std::vector<HwlocNode> nodes = {};
  std::vector<HwlocPackage> packages = {};
  std::vector<CpuSet> localities = {};  // sets of threads that are near a device, each once
  std::vector<HwlocPciDevice> pci = {};
  std::vector<HwlocOsDevice> os = {};
  std::vector<HwlocMatrix> matrices = {};
};

// Limits that no real machine exceeds. A matrix has one row for each GPU and switch.
inline constexpr std::size_t most_hwloc_parts =
    1024;  // maximum number of NUMA nodes, of packages and of NICs
inline constexpr std::size_t most_hwloc_gpus = 512;
inline constexpr std::size_t most_hwloc_devices = 16'384;
inline constexpr std::size_t most_hwloc_ends = 512;

// Names of hwloc's matrices of NVIDIA and AMD links.
inline constexpr std::string_view nvlink_matrix = "NVLinkBandwidth";
inline constexpr std::string_view xgmi_matrix = "XGMIBandwidth";

// Names a root complex as sysfs does: "pci0000:17".
std::string root_path(unsigned domain, unsigned bus);

// Throws Error(bad_data) with the machine's origin and, unless it is negative, the byte offset.
[[noreturn]] void fail(const HwlocMachine& machine, std::ptrdiff_t offset, std::string_view what);

// --- conversion to a Topology: hwloc_graph.cpp, hwloc_links.cpp ---

// Adds one host with its packages, NUMA nodes, cores, GPUs, NICs and links. `host` provides id and
// name. Throws Error(bad_data).
void add_host(const HwlocMachine& machine, TopologyHost host, Topology& topology);

// Ids that add_host() gave to the GPUs, switches and packages of a machine.
struct HwlocNames {
  std::string host;
  std::map<HwlocEnd, std::string> ids;
};

// Adds the links of the matrices and returns whether they are known, none or unknown. `topology`
// must contain the host's GPUs already.
IslandState add_links(const HwlocMachine& machine, const HwlocNames& names, Topology& topology);

}  // namespace atoll_v1::atoll::topology_sources

// What atoll reads of a machine that hwloc describes, as plain data: filled from a loaded libhwloc
// topology (hwloc_loaded.hpp) or from hwloc's XML (hwloc_xml.cpp), and turned into a Topology by
// the same rules (hwloc_graph.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sources/hwloc_cpu_set.hpp"
#include "sources/pci_address.hpp"

namespace atoll_v1::atoll::topology_sources {

struct HwlocNode {
  int number = -1;
  CpuSet cpus;
  std::uint64_t memory_bytes = 0;
  std::string subtype = {};  // "GPUMemory", "HBM", ...
};

struct HwlocPackage {
  int number = -1;
  CpuSet cpus;
};

struct HwlocPciDevice : PciAddress {
  unsigned vendor = 0, device = 0, pci_class = 0;  // 0: not given
  double link_gbyte_s = 0;                         // at its present speed; 0: not given
  std::string subtype = {};
  std::string model = {};                    // as a data base of PCI ids has it
  std::string path = {};                     // TopologyGpu::pci_path
  std::optional<std::size_t> locality = {};  // number in HwlocMachine::localities
  std::ptrdiff_t offset = -1;                // in the text; -1: there is none
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
  std::optional<std::size_t> pci = {};       // number in HwlocMachine::pci
  std::optional<std::size_t> locality = {};  // number in HwlocMachine::localities
  std::ptrdiff_t offset = -1;

  std::string_view info(std::string_view key) const;  // "" when absent
};

// What a row of a matrix stands for.
enum class HwlocEndKind {
  pci,      // number in HwlocMachine::pci
  os,       // number in HwlocMachine::os
  package,  // number in HwlocMachine::packages
  other
};

struct HwlocEnd {
  HwlocEndKind kind = HwlocEndKind::other;
  std::size_t index = 0;
};

struct HwlocMatrix {
  std::string name;
  std::vector<HwlocEnd> ends;
  std::vector<std::uint64_t> values;  // row by row, ends.size() squared

  std::uint64_t at(std::size_t row, std::size_t column) const {
    return values[row * ends.size() + column];
  }
};

struct HwlocMachine {
  std::string origin = "hwloc";  // for messages
  std::string host_name = {};
  std::string version = {};  // of the hwloc that looked
  std::string kernel = {};
  CpuSet usable = {};   // threads that the process which looked may run on
  CpuSet threads = {};  // all that exist
  int thread_count = 0;
  std::vector<CpuSet> cores = {};
  std::vector<HwlocNode> nodes = {};
  std::vector<HwlocPackage> packages = {};
  std::vector<CpuSet> localities = {};  // the threads next to a device
  std::vector<HwlocPciDevice> pci = {};
  std::vector<HwlocOsDevice> os = {};
  std::vector<HwlocMatrix> matrices = {};
};

// A machine beyond these is none that exists; a matrix has a row for each GPU and switch.
inline constexpr std::size_t most_hwloc_parts = 1024;  // nodes, packages, NICs: each
inline constexpr std::size_t most_hwloc_gpus = 512;
inline constexpr std::size_t most_hwloc_devices = 16'384;
inline constexpr std::size_t most_hwloc_ends = 512;

// The matrices that are read: links of NVIDIA's and AMD's GPUs.
inline constexpr std::string_view nvlink_matrix = "NVLinkBandwidth";
inline constexpr std::string_view xgmi_matrix = "XGMIBandwidth";

// "pci0000:17", how sysfs calls a root complex.
std::string root_path(unsigned domain, unsigned bus);

// Throws Error(bad_data) with the machine's origin, and the offset where there is one.
[[noreturn]] void fail(const HwlocMachine& machine, std::ptrdiff_t offset, std::string_view what);

}  // namespace atoll_v1::atoll::topology_sources

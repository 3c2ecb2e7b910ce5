// Names of all facts (Facts in topology.hpp) with the form of their values. Sources write facts,
// checks read them. Unknown names are kept in the data, but nothing reads them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::fact {

// A fact that answers a question is "yes" or "no". Numbers are decimal, without units.

// --- hosts ---
inline constexpr std::string_view hwloc_version =
    "hwloc.version";  // "2.9.0", the hwloc that described the host
inline constexpr std::string_view driver_version = "driver.version";
inline constexpr std::string_view cuda_version =
    "cuda.version";  // CUDA version of the driver: "13.0"
inline constexpr std::string_view kernel_release = "kernel.release";
inline constexpr std::string_view virtual_machine =
    "virtual_machine";                                      // host is a virtual machine: yes, no
inline constexpr std::string_view container = "container";  // process runs in a container: yes, no
inline constexpr std::string_view iommu =
    "iommu";  // mode of the IOMMU: "off", "passthrough", "translated"
inline constexpr std::string_view peermem = "peermem";  // nvidia_peermem is loaded: yes, no
inline constexpr std::string_view dma_buf =
    "dma_buf";  // GPU memory can be exported as dma-buf: yes, no
inline constexpr std::string_view imex_channel =
    "imex.channel";  // an IMEX channel device exists: yes, no
inline constexpr std::string_view memlock_bytes =
    "memlock_bytes";  // limit of locked memory, or "unlimited"
inline constexpr std::string_view shm_bytes = "shm_bytes";  // size of /dev/shm in bytes
inline constexpr std::string_view hidden =
    "hidden";  // paths that the container hides: "/sys /dev/infiniband"
// GPUs on the PCI bus that the driver hides from this process: "00000000:1b:00.0 ..."
inline constexpr std::string_view hidden_gpus = "gpus.hidden";
inline constexpr std::string_view net_interfaces =
    "net.interfaces";  // names of network interfaces: "eth0 ib0"
inline constexpr std::string_view host_hash = "nccl.host_hash";  // host hash from NCCL's XML file
inline constexpr std::string_view env_prefix = "env.";           // environment: "env.NCCL_IB_HCA"
inline constexpr std::string_view nccl_conf_prefix =
    "nccl.conf.";  // NCCL's configuration file: "nccl.conf.NCCL_IB_HCA"
inline constexpr std::string_view source_prefix =
    "source.";  // "source.nvml": why that source could not look

// --- GPUs and NICs: their PCIe link, and the path to them ---
inline constexpr std::string_view pci_device =
    "pci.device";                                           // PCI vendor and device id: "10de:2330"
inline constexpr std::string_view pci_class = "pci.class";  // PCI class: "0302"
inline constexpr std::string_view pci_gt_s =
    "pci.gt_s";  // current GT/s of a lane: 2.5 5 8 16 32 64
inline constexpr std::string_view pci_gt_s_max = "pci.gt_s_max";
inline constexpr std::string_view pci_width = "pci.width";  // current number of lanes
inline constexpr std::string_view pci_width_max = "pci.width_max";
inline constexpr std::string_view pci_replays = "pci.replays";  // counter of replayed packets
inline constexpr std::string_view pci_gbyte_s =
    "pci.gbyte_s";  // current GB/s, where a source gives no GT/s and width
inline constexpr std::string_view pci_acs = "pci.acs";  // "off", or bridges above that redirect
inline constexpr std::string_view pci_ats = "pci.ats";  // address translation is enabled: yes, no
inline constexpr std::string_view pci_max_read_request =
    "pci.max_read_request";  // maximum read request in bytes
inline constexpr std::string_view pci_relaxed_ordering =
    "pci.relaxed_ordering";  // enabled: yes, no

// --- GPUs ---
inline constexpr std::string_view sm = "sm";    // CUDA compute capability: "90"
inline constexpr std::string_view gcn = "gcn";  // AMD architecture: "gfx942"
inline constexpr std::string_view memory_bytes = "memory_bytes";
inline constexpr std::string_view nvlink_active = "nvlink.active";  // number of links that are up
inline constexpr std::string_view nvlink_total = "nvlink.total";    // number of links of the chip
inline constexpr std::string_view nvlink_errors =
    "nvlink.errors";  // error counters: "none", or "symbol_error 12, link_downed 3"
inline constexpr std::string_view fabric_state =
    "fabric.state";  // completed in_progress not_started not_supported
inline constexpr std::string_view fabric_status = "fabric.status";  // "success", or NVML's text
inline constexpr std::string_view fabric_cluster =
    "fabric.cluster";  // UUID of the NVLink fabric's cluster
inline constexpr std::string_view fabric_clique = "fabric.clique";
inline constexpr std::string_view fabric_health =
    "fabric.health";                                            // "healthy", or a list of problems
inline constexpr std::string_view xgmi_hive = "xgmi.hive";      // hexadecimal; "0" means no hive
inline constexpr std::string_view mig = "mig";                  // MIG mode is on: yes, no
inline constexpr std::string_view persistence = "persistence";  // persistence mode is on: yes, no
inline constexpr std::string_view ecc_remap_pending =
    "ecc.remap_pending";  // memory rows wait for remapping: yes, no
inline constexpr std::string_view ecc_remap_failed =
    "ecc.remap_failed";  // remapping of memory rows failed: yes, no
inline constexpr std::string_view throttle =
    "throttle";  // why clocks are reduced: "power_cap thermal", or "none"
inline constexpr std::string_view power_limit_w = "power.limit_w";
inline constexpr std::string_view power_default_w = "power.default_w";

// --- NICs ---
inline constexpr std::string_view firmware = "firmware";
inline constexpr std::string_view mtu = "mtu";           // current MTU in bytes
inline constexpr std::string_view width = "link.width";  // number of lanes of the port: "4"
inline constexpr std::string_view errors =
    "link.errors";  // error counters: "none", or "symbol_error 12, link_downed 3"
inline constexpr std::string_view phys_state =
    "phys_state";                               // physical state: "linkup", "polling", "disabled"
inline constexpr std::string_view lid = "lid";  // LID of the port, decimal
inline constexpr std::string_view sm_lid =
    "sm_lid";  // LID of the subnet manager, decimal; "0": none
inline constexpr std::string_view node_guid = "node_guid";  // node GUID as the source prints it
inline constexpr std::string_view gid_roce_v2 =
    "gid.roce_v2";                                    // index of a routable RoCE v2 GID, or "none"
inline constexpr std::string_view netdev = "netdev";  // network interface of the port
inline constexpr std::string_view gdr = "gdr";        // NCCL found GPUDirect usable: yes, no
inline constexpr std::string_view leaf = "leaf";      // leaf switch that the port connects to

}  // namespace atoll_v1::atoll::fact

namespace atoll_v1::atoll {

// Returns "" when no source gave the fact.
inline std::string_view get_fact(const Facts& facts, std::string_view name) {
  const auto found = facts.find(name);
  return found == facts.end() ? std::string_view() : std::string_view(found->second);
}

// Empty when the fact is absent or not a number.
std::optional<double> number_fact(const Facts& facts, std::string_view name);

// Whether a fact changes while the machine stays the same, as counters, throttling and the speed of
// an idle link do.
bool is_momentary(std::string_view name) noexcept;

// Adds a fact. Keeps an existing value, and ignores an empty one.
inline void set_fact(Facts& facts, std::string_view name, std::string_view value) {
  if (!value.empty()) facts.try_emplace(std::string(name), value);
}

}  // namespace atoll_v1::atoll

// Names of all facts, which are further properties of hosts and devices (Facts in topology.hpp),
// and the form of their values. Sources write facts, checks read them. Nothing reads other names.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::fact {

using Name = std::string_view;

// Yes/no facts have the value "yes" or "no". Numbers are decimal, without units.

// --- hosts ---
inline constexpr Name hwloc_version = "hwloc.version";  // version of hwloc: "2.9.0"
inline constexpr Name driver_version = "driver.version";
inline constexpr Name cuda_version = "cuda.version";  // CUDA version of the driver: "13.0"
inline constexpr Name kernel_release = "kernel.release";
inline constexpr Name virtual_machine = "virtual_machine";  // "yes" on a virtual machine
inline constexpr Name container = "container";              // "yes" in a container
inline constexpr Name iommu = "iommu";      // mode of the IOMMU: "off", "passthrough", "translated"
inline constexpr Name peermem = "peermem";  // "yes" if nvidia_peermem is loaded
inline constexpr Name dma_buf = "dma_buf";  // "yes" if dma-buf can export GPU memory
inline constexpr Name imex_channel = "imex.channel";    // "yes" if an IMEX channel device exists
inline constexpr Name memlock_bytes = "memlock_bytes";  // bytes that may be locked, or "unlimited"
inline constexpr Name shm_bytes = "shm_bytes";          // size of /dev/shm in bytes
// Names in /dev/shm that dead jobs have left: "atoll-00ff nccl-x1y2", or "none"
inline constexpr Name shm_left = "shm.left";
inline constexpr Name hidden = "hidden";  // paths that the container hides: "/sys /dev/infiniband"
// GPUs on the PCI bus that the driver hides from this process: "00000000:1b:00.0 ..."
inline constexpr Name hidden_gpus = "gpus.hidden";
inline constexpr Name net_interfaces = "net.interfaces";  // names of network interfaces: "eth0 ib0"
inline constexpr Name host_hash = "nccl.host_hash";       // host hash from NCCL's XML file
inline constexpr Name cloud = "cloud";  // provider of the machine: "azure", "google" or "oracle"
// "package.N" describes processor package N: "18 cores, L3 45 MiB, 18 x L2 256 KiB".
inline constexpr Name package_prefix = "package.";
// Prefixes of the names of facts: "env.NAME" is an environment variable, "nccl.conf.NAME" a setting
// in nccl.conf, and "source.NAME" the reason why a source found nothing.
inline constexpr Name env_prefix = "env.";
inline constexpr Name nccl_conf_prefix = "nccl.conf.";
inline constexpr Name source_prefix = "source.";
// "note.FORMAT" describes what a file lists but the topology does not hold, or what the file lacks.
inline constexpr Name note_prefix = "note.";

// --- GPUs and NICs: their PCIe links, and the bridges on the path to them ---
inline constexpr Name pci_device = "pci.device";  // PCI vendor and device id: "10de:2330"
inline constexpr Name pci_class = "pci.class";    // PCI class: "0302"
inline constexpr Name pci_gt_s = "pci.gt_s";      // current GT/s of a lane: 2.5 5 8 16 32 64
inline constexpr Name pci_gt_s_max = "pci.gt_s_max";
inline constexpr Name pci_width = "pci.width";  // current number of lanes
inline constexpr Name pci_width_max = "pci.width_max";
inline constexpr Name pci_replays = "pci.replays";  // number of PCIe packets sent again
inline constexpr Name pci_gbyte_s = "pci.gbyte_s";  // GB/s of the link, if its GT/s are unknown
inline constexpr Name pci_acs = "pci.acs";          // ACS: "off", or bridges that redirect traffic
inline constexpr Name pci_ats = "pci.ats";          // "yes" if address translation (ATS) is on
inline constexpr Name pci_max_read_request = "pci.max_read_request";  // read request limit in bytes
inline constexpr Name pci_relaxed_ordering = "pci.relaxed_ordering";  // relaxed ordering: yes, no

// --- GPUs ---
inline constexpr Name sm = "sm";    // CUDA compute capability: "90"
inline constexpr Name gcn = "gcn";  // architecture of an AMD GPU: "gfx942"
inline constexpr Name memory_bytes = "memory_bytes";
inline constexpr Name nvlink_active = "nvlink.active";  // number of NVLinks that are up
inline constexpr Name nvlink_total = "nvlink.total";    // number of NVLinks of the chip
inline constexpr Name nvlink_errors = "nvlink.errors";  // sum of CRC, replay and recovery errors
inline constexpr Name fabric_state = "fabric.state";    // NVLink fabric state: "completed", ...
inline constexpr Name fabric_status = "fabric.status";  // fabric setup: "success", or NVML's error
inline constexpr Name fabric_cluster = "fabric.cluster";  // UUID of the NVLink fabric
inline constexpr Name fabric_clique = "fabric.clique";
inline constexpr Name fabric_health = "fabric.health";  // NVLink health: "healthy", or faults
inline constexpr Name xgmi_hive = "xgmi.hive";      // AMD hive id in hexadecimal; "0" for no hive
inline constexpr Name mig = "mig";                  // "yes" if MIG mode is on
inline constexpr Name persistence = "persistence";  // "yes" if persistence mode is on
inline constexpr Name ecc_remap_pending = "ecc.remap_pending";  // "yes" if memory awaits remapping
inline constexpr Name ecc_remap_failed = "ecc.remap_failed";    // "yes" if a remapping failed
inline constexpr Name throttle = "throttle";  // why clocks are low: "power_cap thermal", or "none"
inline constexpr Name power_limit_w = "power.limit_w";
inline constexpr Name power_default_w = "power.default_w";

// --- NICs ---
// "yes" if the source lists the NIC as an RDMA device, but does not show its link layer
inline constexpr Name rdma = "rdma";
inline constexpr Name firmware = "firmware";
inline constexpr Name mtu = "mtu";             // current MTU of the port in bytes
inline constexpr Name width = "link.width";    // number of lanes of the port: "4"
inline constexpr Name errors = "link.errors";  // error counters: "symbol_error 12", or "none"
// Counters of congestion and of lost packets: "np_cnp_sent 7, port_xmit_wait 12", or "none"
inline constexpr Name congestion = "link.congestion";
inline constexpr Name phys_state = "phys_state";  // physical state: "linkup", "polling", "disabled"
inline constexpr Name lid = "lid";                // LID of the port, decimal
inline constexpr Name sm_lid = "sm_lid";          // decimal LID of the subnet manager, or "0"
inline constexpr Name node_guid = "node_guid";    // node GUID as the source prints it
inline constexpr Name gid_roce_v2 = "gid.roce_v2";  // index of a routable RoCE v2 GID, or "none"
inline constexpr Name netdev = "netdev";            // network interface of the port
inline constexpr Name gdr = "gdr";                  // "yes" if NCCL found GPUDirect usable
inline constexpr Name leaf = "leaf";                // leaf switch that the port connects to

}  // namespace atoll_v1::atoll::fact

namespace atoll_v1::atoll {

// Returns the value of a fact (a named property), or "" when no source provided the fact.
inline std::string_view get_fact(const Facts& facts, std::string_view name) {
  const auto found = facts.find(name);
  return found == facts.end() ? std::string_view() : std::string_view(found->second);
}

// Returns the value of a fact (a named property) as a number; empty when the fact is absent or not
// a number.
std::optional<double> number_fact(const Facts& facts, std::string_view name);

// Maps package numbers of a host to the descriptions in its facts "package.N".
std::map<int, std::string_view> packages_of(const TopologyHost& host);

// True if a fact changes while the machine stays the same, like counters, throttling and the speed
// of an idle link.
bool is_momentary(std::string_view name) noexcept;

inline std::string_view yes_no(bool value) { return value ? "yes" : "no"; }

// Adds a fact. Keeps an existing value, and ignores an empty one.
inline void set_fact(Facts& facts, std::string_view name, std::string_view value) {
  if (!value.empty()) facts.try_emplace(std::string(name), value);
}

}  // namespace atoll_v1::atoll

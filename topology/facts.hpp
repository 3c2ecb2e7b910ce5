// The names of facts (Facts in topology.hpp), each with its form. Sources write them, checks read
// them; a name that is not here is carried and read by nobody.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::fact {

// Forms: "yes" or "no" where a name is a question; plain decimal numbers, without units, else.

// --- hosts ---
inline constexpr std::string_view hwloc_version = "hwloc.version";  // "2.9.0", of who looked
inline constexpr std::string_view driver_version = "driver.version";
inline constexpr std::string_view cuda_version = "cuda.version";  // of the driver: "13.0"
inline constexpr std::string_view kernel_release = "kernel.release";
inline constexpr std::string_view virtual_machine = "virtual_machine";  // yes, no
inline constexpr std::string_view container = "container";              // yes, no
inline constexpr std::string_view iommu = "iommu";      // "off", "passthrough", "translated"
inline constexpr std::string_view peermem = "peermem";  // nvidia_peermem loaded: yes, no
inline constexpr std::string_view dma_buf = "dma_buf";  // GPU memory as dma-buf: yes, no
inline constexpr std::string_view imex_channel =
    "imex.channel";  // a channel device exists: yes, no
inline constexpr std::string_view memlock_bytes = "memlock_bytes";  // a number, or "unlimited"
inline constexpr std::string_view shm_bytes = "shm_bytes";          // size of /dev/shm
inline constexpr std::string_view hidden =
    "hidden";  // paths that a container hides: "/sys /dev/infiniband"
// GPUs on the PCI bus that the driver does not show to this process: "00000000:1b:00.0 ..."
inline constexpr std::string_view hidden_gpus = "gpus.hidden";
inline constexpr std::string_view net_interfaces = "net.interfaces";  // "eth0 ib0"
inline constexpr std::string_view host_hash = "nccl.host_hash";       // as NCCL's file has it
inline constexpr std::string_view env_prefix = "env.";  // "env.NCCL_IB_HCA": from the environment
inline constexpr std::string_view nccl_conf_prefix =
    "nccl.conf.";  // "nccl.conf.NCCL_IB_HCA": from a file
inline constexpr std::string_view source_prefix =
    "source.";  // "source.nvml": why it could not look

// --- GPUs and NICs: their PCIe link, and the path to them ---
inline constexpr std::string_view pci_device = "pci.device";  // "10de:2330"
inline constexpr std::string_view pci_class = "pci.class";    // "0302"
inline constexpr std::string_view pci_gt_s = "pci.gt_s";      // per lane, now: 2.5 5 8 16 32 64
inline constexpr std::string_view pci_gt_s_max = "pci.gt_s_max";
inline constexpr std::string_view pci_width = "pci.width";  // lanes, now
inline constexpr std::string_view pci_width_max = "pci.width_max";
inline constexpr std::string_view pci_replays = "pci.replays";  // counter
inline constexpr std::string_view pci_gbyte_s =
    "pci.gbyte_s";                                      // now, where only the product is given
inline constexpr std::string_view pci_acs = "pci.acs";  // "off", or bridges above it that redirect
inline constexpr std::string_view pci_ats = "pci.ats";  // on the device: yes, no
inline constexpr std::string_view pci_max_read_request = "pci.max_read_request";  // bytes
inline constexpr std::string_view pci_relaxed_ordering = "pci.relaxed_ordering";  // yes, no

// --- GPUs ---
inline constexpr std::string_view sm = "sm";    // "90"
inline constexpr std::string_view gcn = "gcn";  // "gfx942"
inline constexpr std::string_view memory_bytes = "memory_bytes";
inline constexpr std::string_view nvlink_active = "nvlink.active";  // links that are up
inline constexpr std::string_view nvlink_total = "nvlink.total";    // links that the chip has
inline constexpr std::string_view nvlink_errors = "nvlink.errors";  // CRC, replay, recovery: sum
inline constexpr std::string_view fabric_state =
    "fabric.state";  // completed in_progress not_started not_supported
inline constexpr std::string_view fabric_status = "fabric.status";    // "success", or NVML's text
inline constexpr std::string_view fabric_cluster = "fabric.cluster";  // UUID
inline constexpr std::string_view fabric_clique = "fabric.clique";
inline constexpr std::string_view fabric_health = "fabric.health";  // "healthy", or what is not
inline constexpr std::string_view xgmi_hive = "xgmi.hive";          // hexadecimal; "0": none
inline constexpr std::string_view mig = "mig";                      // yes, no
inline constexpr std::string_view persistence = "persistence";      // yes, no
inline constexpr std::string_view ecc_remap_pending = "ecc.remap_pending";  // yes, no
inline constexpr std::string_view ecc_remap_failed = "ecc.remap_failed";    // yes, no
inline constexpr std::string_view throttle = "throttle";  // "none", or reasons: "power_cap thermal"
inline constexpr std::string_view power_limit_w = "power.limit_w";
inline constexpr std::string_view power_default_w = "power.default_w";

// --- NICs ---
inline constexpr std::string_view firmware = "firmware";
inline constexpr std::string_view mtu = "mtu";           // active, bytes
inline constexpr std::string_view width = "link.width";  // lanes of the port: "4"
inline constexpr std::string_view errors =
    "link.errors";  // "none", or "symbol_error 12, link_downed 3"
inline constexpr std::string_view phys_state = "phys_state";  // "linkup", "polling", "disabled"
inline constexpr std::string_view lid = "lid";                // decimal
inline constexpr std::string_view sm_lid = "sm_lid";  // of the subnet manager, decimal; "0": none
inline constexpr std::string_view node_guid = "node_guid";  // as the source prints it
inline constexpr std::string_view gid_roce_v2 =
    "gid.roce_v2";                                    // index of a routable RoCE v2 GID; "none"
inline constexpr std::string_view netdev = "netdev";  // the network interface of the port
inline constexpr std::string_view gdr = "gdr";        // NCCL saw GPUDirect: yes, no
inline constexpr std::string_view leaf = "leaf";      // the switch that the port hangs on

}  // namespace atoll_v1::atoll::fact

namespace atoll_v1::atoll {

// "" when no source gave it.
inline std::string_view get_fact(const Facts& facts, std::string_view name) {
  const auto found = facts.find(name);
  return found == facts.end() ? std::string_view() : std::string_view(found->second);
}

// Empty when absent or no number.
std::optional<double> number_fact(const Facts& facts, std::string_view name);

// Whether a fact changes while a machine stays what it is: counters, throttling, an idle link's
// speed.
bool is_momentary(std::string_view name) noexcept;

// Keeps what is there; empty values say nothing.
inline void set_fact(Facts& facts, std::string_view name, std::string_view value) {
  if (!value.empty()) facts.try_emplace(std::string(name), value);
}

}  // namespace atoll_v1::atoll

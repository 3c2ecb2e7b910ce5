// A machine as plain data: hosts, GPUs, NICs and links, and the pure functions that derive from it
//   islands   sets of GPUs that a fast fabric (NVLink, xGMI) joins,
//   affinity  the NICs that each GPU should use,
//   rails     the NICs of all hosts that share a leaf switch.
// Nothing here communicates or keeps state, except that Topology::discover() is collective.
// Bandwidths are payload in GB/s = 1e9 bytes per second, in one direction. NIC rates are Gbit/s, as
// vendors print them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/finding.hpp"

namespace atoll_v1::atoll {

enum class IslandState {
  known,
  none,
  unknown
};
ATOLL_API std::string_view name(IslandState state) noexcept;

// Further properties of a host or device: settings, counters, states. They are stored as text under
// the names that topology/facts.hpp lists. A property that no source reported is absent.
using Facts = std::map<std::string, std::string, std::less<>>;

struct TopologyHost {
  std::string id;  // id, unique in the job: name, boot id and network namespace
  std::string name;
  int packages = 0;
  int numa_nodes = 0;  // NUMA nodes with cores; memory-only nodes are not counted
  int cores = 0;       // physical cores that the discovering process may use
  int threads = 0;     // hardware threads that the discovering process may use
  std::uint64_t memory_bytes = 0;
  int host_cores = 0;    // all physical cores of the host
  int host_threads = 0;  // all hardware threads of the host
  // States whether Topology::links lists the links between this host's GPUs. known: it lists all.
  // none: a source showed that there are no links. unknown: no source could see the links.
  IslandState gpu_links = IslandState::unknown;
  Facts facts = {};
};

struct TopologyGpu {
  std::string id;     // unique id "HOST/gpuN"
  std::string host;   // id of the GPU's host
  std::string busid;  // PCI bus id "00000000:1b:00.0" (8-digit domain, lower case); "" if unknown
  std::string uuid;
  std::string model;
  int index = -1;    // number of the GPU in its source, such as NVML's index; -1 if unknown
  int numa = -1;     // NUMA node of the GPU; -1 if unknown
  int package = -1;  // processor package of the GPU; -1 if unknown
  // PCI path as in sysfs: the root complex, then every bridge above the device, joined by "/":
  // "pci0000:15/00000000:15:01.0/00000000:16:00.0". "" if unknown.
  std::string pci_path = {};
  std::vector<std::string> partitions = {};  // UUIDs of the GPU's MIG or CPX instances
  Facts facts = {};
};

// One port of a network adapter.
struct TopologyNic {
  std::string id;    // id "HOST/mlx5_0"; the id of a second port is "HOST/mlx5_0:2"
  std::string host;  // id of the NIC's host
  std::string name;
  std::string busid;    // PCI bus id, in the format of TopologyGpu::busid
  std::string adapter;  // system image GUID, equal for all ports of one adapter
  std::string layer;    // link layer: "infiniband", "ethernet", "efa", "slingshot", "omni-path", ""
  std::string state;    // port state: "active", "down", "init", "armed"; "" if unknown
  std::optional<double> rate_gbit_s;
  std::string evidence;       // source of the rate: "sysfs", "nccl xml", ...; "" without a rate
  int numa = -1;              // NUMA node of the NIC; -1 if unknown
  int package = -1;           // processor package of the NIC; -1 if unknown
  std::string pci_path = {};  // PCI path, in the format of TopologyGpu::pci_path
  bool is_virtual = false;    // true for a bridge, veth or tunnel, which joins no hosts by itself
  Facts facts = {};
};

// A link joins two GPUs, or a GPU and a switch. Links of type "nvlink" and "xgmi" form islands; an
// end that is not a GPU is a switch. All other types are kept in the data but form no islands:
// "nvlink_cpu" (GPU to processor), "pci", and "nvlink_unseen" (to a GPU that the source hides).
struct TopologyLink {
  std::string a, b;  // ids of the GPUs or switch at the two ends
  std::string type;
  int count = 1;                       // number of parallel links that this entry stands for
  std::optional<double> gbyte_s = {};  // GB/s of all `count` links together
};

// Distance between two devices of one host, nearest first, in the terms of `nvidia-smi topo -m`:
// the highest part of the machine that traffic between them passes.
enum class PathLevel {
  pix,      // path over at most one PCIe bridge
  pxb,      // path over several PCIe bridges
  phb,      // path over one host bridge (root complex)
  node,     // path between host bridges of one NUMA node
  package,  // path between NUMA nodes of one processor package
  sys       // path between processor packages
};
// Returns the name of a level: "PIX", "PXB", "PHB", "NODE", "PKG" or "SYS".
ATOLL_API std::string_view name(PathLevel level) noexcept;

// A distance between two devices, from a source that states no PCI paths (`nvidia-smi topo -m`).
struct TopologyPath {
  std::string a, b;  // ids of two GPUs or NICs
  PathLevel level = PathLevel::sys;
};

// A contradiction between two sources of one host. The topology holds the value of the first.
struct TopologyConflict {
  std::string subject;  // id of a host or device, or "ID - ID" for a link
  std::string member;   // what the sources disagree about: "numa", "links", a key of Facts, ...
  std::string believed, contradiction;  // both values with their sources: "1 (a.xml)"
};

// An input file, kept verbatim so that an export in the same format can reproduce what the other
// members of Topology cannot hold.
struct TopologyDocument {
  std::string format;  // format of the input file: "nccl xml"
  std::string origin;  // name of the input file
  std::vector<std::string> hosts;
  std::string text;
};

// A set of GPUs. Every GPU is in exactly one island. A host without GPUs is an island of its CPUs,
// with an empty `gpus`.
//   known    `fabric` joins these GPUs
//   none     a single GPU that is known to have no link
//   unknown  all GPUs of a host about whose links nothing is known
struct Island {
  std::vector<std::string> gpus;
  std::vector<std::string> hosts;
  std::string fabric;  // kind of links: "nvlink", "xgmi", "cpu"; "" unless the state is known
  IslandState state = IslandState::unknown;
  bool uniform = true;                 // all pairs of GPUs are joined, at equal rates
  std::optional<double> pair_gbyte_s;  // rate of the slowest pair; empty if a pair has no link
  std::optional<double> gpu_gbyte_s;   // total rate of the links of the slowest GPU
};

// The NICs of one GPU, or of a rank without a GPU. `nearest` depends on the distance alone. `use`
// lists the NICs to send through: active, not virtual, and on the fabric that joins the hosts. GPUs
// that are equally near to the same NICs divide these NICs among themselves.
struct Affinity {
  std::string gpu;  // id of the GPU; "" for a rank without a GPU
  std::vector<std::string> nearest;
  std::vector<std::string> use;
  std::optional<PathLevel> level;  // distance of `nearest`; empty if no source provides it
  std::string why;                 // explanation of the choice of NICs, for people
};

// NICs on one leaf switch, one or more on each host, and the GPUs that use them.
struct Rail {
  int index = 0;
  std::vector<std::string> nics;
  std::vector<std::string> gpus;
  // "fabric": a fabric file names the leaf switch. "assumed": NICs in equal positions of all hosts
  // are assumed to share a leaf switch.
  std::string evidence;
};

class World;

struct ATOLL_API Topology {
  std::vector<TopologyHost> hosts;
  std::vector<TopologyGpu> gpus;
  std::vector<TopologyNic> nics;
  std::vector<TopologyLink> links;
  std::vector<TopologyPath> paths = {};
  std::vector<TopologyConflict> conflicts = {};
  std::vector<TopologyDocument> documents = {};

  // Discovers this host with hwloc, NVML, sysfs and the environment. `host_id` becomes its id;
  // empty means the host name. Throws Error(io) when hwloc cannot load.
  static Topology discover_local(std::string_view host_id = {});
  // Discovers all hosts of the job and merges the results; the lowest rank on each host discovers
  // that host. Collective. Every rank throws when one of them fails. Defined in src/comm.
  static Topology discover(World& world);
  // Like discover_local() and discover(), but fast, because they find only the RDMA ports. For
  // compare_ports().
  static Topology discover_local_ports(std::string_view host_id = {});
  static Topology discover_ports(World& world);

  // Convert the topology to and from JSON, in the form that topology/README.md documents.
  // from_json() throws Error(bad_data), which names `source` and the byte offset.
  std::string to_json() const;
  static Topology from_json(std::string_view text, std::string_view source);
};

// Merges topologies of one job that may describe the same hosts. A host, GPU or NIC whose id occurs
// in several parts is copied from the first.
ATOLL_API Topology merge(const std::vector<Topology>& parts);

// Returns the islands, ordered by their first host, then by their first GPU.
ATOLL_API std::vector<Island> find_islands(const Topology& topology);

// Returns the NICs of each GPU, in the order of Topology::gpus.
ATOLL_API std::vector<Affinity> find_affinity(const Topology& topology);

// Returns the NICs of a rank of `host` that uses no GPU and runs on cores of the NUMA node `numa`;
// -1 means cores of several nodes, or of an unknown one. `use` lists the fastest active NICs of the
// node, or of the host if the node has none. Ranks of a node share its NICs.
ATOLL_API Affinity find_cpu_affinity(const Topology& topology, std::string_view host, int numa);

// Bandwidth of every NIC in GB/s, in the order of Topology::nics: the minimum of port, PCIe link
// and share of the adapter. Empty if only the PCIe rate, an upper limit, is known.
ATOLL_API std::vector<std::optional<double>> usable_gbyte_s(const Topology& topology);

// Returns findings about counters of network ports that rose during a run: errors of the link, lost
// packets, congestion. Both topologies are of one job, discovered before and after the run. A
// counter that fell, because it was reset or has overflowed, and a counter that vanished are left
// out.
ATOLL_API std::vector<Finding> compare_ports(const Topology& before, const Topology& after);

// Returns the rails, ordered by the first GPU that uses each rail.
ATOLL_API std::vector<Rail> find_rails(const Topology& topology,
                                       const std::vector<Affinity>& affinity);

// Dense products in FLOP/s by the data sheet: bf16 with f32 sums on tensor cores (f16 on a V100),
// and f32 without them. Where a sheet gives only the rate with sparsity, it is half of that.
struct PeakRates {
  double bf16 = 0, f32 = 0;
};
// Finds a GPU by the name that its driver reports. The rates are 0 for a GPU that the table of
// models (topology/gpu_models.cpp) does not have, and for a part of one (MIG).
ATOLL_API PeakRates peak_rates(std::string_view gpu);

}  // namespace atoll_v1::atoll

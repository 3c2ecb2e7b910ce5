// The machine as data: hosts, GPUs, NICs, links; islands (sets of GPUs joined by the fast fabric),
// the NICs that a GPU should use, the rails that join the islands. Pure: no communication, no
// state. Bandwidths are GB/s = 1e9 bytes per second in one direction, payload; NIC rates are
// Gbit/s as their vendors print them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {

enum class IslandState {
  known,
  none,
  unknown
};
std::string_view name(IslandState state) noexcept;

// What a source said about a host or device besides its place: settings, counters, states, as text
// under the names of topology/facts.hpp. A fact that no source gave is absent.
using Facts = std::map<std::string, std::string, std::less<>>;

struct TopologyHost {
  std::string id;  // unique in the job (name, boot id, network namespace)
  std::string name;
  int packages = 0;
  int numa_nodes = 0;  // with cores; memory-only nodes are not counted
  int cores = 0;       // physical cores that the process which looked may use
  int threads = 0;     // hardware threads that the process which looked may use
  std::uint64_t memory_bytes = 0;
  int host_cores = 0;    // of the whole host, whoever may use them
  int host_threads = 0;  // of the whole host
  // What a source said about links between this host's GPUs. unknown: it could not see (an absent
  // matrix proves nothing); none: it looked and there are none; known: `links` is complete.
  IslandState gpu_links = IslandState::unknown;
  Facts facts = {};
};

struct TopologyGpu {
  std::string id;     // "HOST/gpuN"
  std::string host;   // TopologyHost::id
  std::string busid;  // "00000000:1b:00.0": eight digits of domain, lower case; "" unknown
  std::string uuid;
  std::string model;
  int index = -1;  // the number that the source gives it; -1: unknown
  int numa = -1;   // -1: unknown
  int package = -1;
  // The way to it as sysfs spells it: root complex, then the bridges above the device, each
  // "DDDDDDDD:BB:DD.F": "pci0000:15/00000000:15:01.0/00000000:16:00.0". "" unknown.
  std::string pci_path = {};
  std::vector<std::string> partitions = {};  // UUIDs of its MIG or CPX instances
  Facts facts = {};
};

// A port of a network adapter.
struct TopologyNic {
  std::string id;  // "HOST/mlx5_0"; a second port is "HOST/mlx5_0:2"
  std::string host;
  std::string name;
  std::string busid;
  std::string adapter;  // system image GUID: ports of one adapter share it
  std::string layer;    // "infiniband", "ethernet", "efa", "slingshot", "omni-path", ""
  std::string state;    // "active", "down", "init", "armed"; "" unknown
  std::optional<double> rate_gbit_s;
  std::string evidence;  // where the rate is from: "sysfs", "nccl xml", ...; "" without a rate
  int numa = -1;
  int package = -1;
  std::string pci_path = {};  // as of a GPU
  bool is_virtual = false;    // a bridge, a veth, a tunnel: joins no hosts by itself
  Facts facts = {};
};

// A link joins two GPUs, or a GPU and a switch. Types "nvlink" and "xgmi" make islands, and an end
// of theirs that is no GPU is a switch. Other types ("nvlink_cpu", "pci", and "nvlink_unseen" to a
// GPU that the source leaves out) are carried and join nothing.
struct TopologyLink {
  std::string a, b;  // ids of the ends
  std::string type;
  int count = 1;                  // parallel links that make up this one
  std::optional<double> gbyte_s;  // of all `count` together
};

// How far apart two devices of a host are, nearest first, in the terms of `nvidia-smi topo -m`.
enum class PathLevel {
  pix,      // at most one PCIe bridge between them
  pxb,      // several PCIe bridges
  phb,      // the host bridge (root complex)
  node,     // the NUMA node
  package,  // the processor package
  sys       // the links between packages
};
std::string_view name(PathLevel level) noexcept;  // "PIX", "PXB", "PHB", "NODE", "PKG", "SYS"

// A distance that a source states without the way (topo -m).
struct TopologyPath {
  std::string a, b;  // ids of GPUs or NICs
  PathLevel level = PathLevel::sys;
};

// Two sources of one host that contradict each other; the first one is believed.
struct TopologyConflict {
  std::string subject;                  // id of a host or device, or "ID - ID" of a link
  std::string member;                   // "numa", "links", a fact's name, ...
  std::string believed, contradiction;  // with their sources: "1 (a.xml)"
};

// A file as it was read, where an export must give back what the other members cannot hold.
struct TopologyDocument {
  std::string format;  // "nccl xml"
  std::string origin;  // the file's name
  std::vector<std::string> hosts;
  std::string text;
};

// Every GPU is in exactly one island. A host without GPUs is one island of its CPUs, with no GPU.
// state known: these GPUs are joined by `fabric`. none: a GPU that is known to have no link, alone.
// unknown: all GPUs of a host about whose links nothing is known.
struct Island {
  std::vector<std::string> gpus;
  std::vector<std::string> hosts;
  std::string fabric;  // "nvlink", "xgmi", "cpu"; "" unless known
  IslandState state = IslandState::unknown;
  bool uniform = true;                 // all pairs are joined, and all alike
  std::optional<double> pair_gbyte_s;  // the slowest pair; empty when a pair has no link of its own
  std::optional<double> gpu_gbyte_s;   // all links of a GPU together; the slowest GPU
};

// The NICs of one GPU. `nearest` goes by the way to them alone. `use` are those to send through:
// active, of the fabric that joins the hosts, not virtual; GPUs that are equally near to the same
// NICs are spread over them.
struct Affinity {
  std::string gpu;
  std::vector<std::string> nearest;
  std::vector<std::string> use;
  std::optional<PathLevel> level;  // of `nearest`; empty: no source tells
  std::string why;                 // a sentence for people
};

// The NICs, one or more a host, that hang on one leaf switch, and the GPUs that use them.
struct Rail {
  int index = 0;
  std::vector<std::string> nics;
  std::vector<std::string> gpus;
  std::string evidence;  // "fabric": a file says which leaf; "assumed": equal positions in hosts
};

class World;

struct Topology {
  std::vector<TopologyHost> hosts;
  std::vector<TopologyGpu> gpus;
  std::vector<TopologyNic> nics;
  std::vector<TopologyLink> links;
  std::vector<TopologyPath> paths = {};
  std::vector<TopologyConflict> conflicts = {};
  std::vector<TopologyDocument> documents = {};

  // This host, live (hwloc, NVML, sysfs). `host_id` names it; empty: its host name.
  static Topology discover_local(std::string_view host_id = {});
  // All hosts of the job, merged; the lowest rank of each host looks. Collective; every rank throws
  // when one of them fails. Defined in src/comm.
  static Topology discover(World& world);

  // The JSON form, documented in topology/README.md. from_json throws Error(bad_data) with the byte
  // offset; `source` names the text in messages.
  std::string to_json() const;
  static Topology from_json(std::string_view text, std::string_view source);
};

// Topologies of one job, where a host may occur in several: hosts, GPUs and NICs that occur in
// several parts (same id) are taken once, from the first.
Topology merge(const std::vector<Topology>& parts);

// In order of the hosts, then of the GPUs.
std::vector<Island> find_islands(const Topology& topology);

// One for each GPU, in their order.
std::vector<Affinity> find_affinity(const Topology& topology);

// What a NIC can carry, in GB/s: the least of its port, its PCIe link and its share of the adapter.
// Empty when none of them is known.
std::optional<double> usable_gbyte_s(const Topology& topology, const TopologyNic& nic);
// Of every NIC, in their order: for more than a few NICs of a large cluster.
std::vector<std::optional<double>> usable_gbyte_s(const Topology& topology);

// In order of the first GPU that uses them.
std::vector<Rail> find_rails(const Topology& topology, const std::vector<Affinity>& affinity);

}  // namespace atoll_v1::atoll

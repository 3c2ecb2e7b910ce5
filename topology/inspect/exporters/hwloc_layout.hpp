// A host's processors as hwloc needs them: every package, NUMA node, core and thread an object of
// its own. A Topology has their numbers only, so they are spread evenly; where devices tell which
// NUMA node belongs to which package, that is kept.
#pragma once

#include <optional>
#include <vector>

#include "atoll/topology.hpp"
#include "sources/hwloc_cpu_set.hpp"

namespace atoll_v1::atoll {

enum class LayoutKind {
  machine,
  package,
  group  // what is near one NUMA node, where that is neither a package nor the machine
};

struct LayoutPart {
  LayoutKind kind = LayoutKind::machine;
  int number = -1;               // of a package
  std::optional<int> numa = {};  // the node whose memory stands in this part
  std::vector<std::size_t> children = {};
  int first_core = 0, cores = 0;

  bool holds(const LayoutPart& inner) const {
    return first_core <= inner.first_core && inner.first_core + inner.cores <= first_core + cores;
  }
};

class HwlocLayout {
 public:
  // `devices` give the NUMA nodes and packages that must exist. Error(unsupported) for a host of
  // more parts than any has.
  HwlocLayout(const TopologyHost& host, const Topology& devices);

  const std::vector<LayoutPart>& parts() const { return parts_; }  // the machine first
  const std::vector<int>& numas() const { return numas_; }         // ascending
  int cores() const { return cores_; }
  // Threads of a core are [first_thread(core), first_thread(core + 1)).
  int first_thread(int core) const;
  topology_sources::CpuSet cpus(const LayoutPart& part) const;
  topology_sources::CpuSet nodes(const LayoutPart& part) const;

  // The part for a device near a NUMA node and a package, where -1 is unknown.
  std::size_t place(int numa, int package) const;
  // Whether what hangs there is read as near them again.
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
  std::vector<std::size_t> homes_;  // of NUMA nodes: which package, where nodes are in packages
  int cores_ = 0, threads_ = 0;
};

}  // namespace atoll_v1::atoll

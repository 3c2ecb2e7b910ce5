// The processors of a host as hwloc objects: packages, NUMA nodes, cores and threads. A Topology
// has only their numbers, so they are distributed evenly. If devices show which NUMA node belongs
// to which package, that is kept.
#pragma once

#include <optional>
#include <vector>

#include "atoll/topology.hpp"
#include "sources/hwloc_cpu_set.hpp"

namespace atoll_v1::atoll {

enum class LayoutKind {
  machine,
  package,
  group  // the surroundings of a NUMA node that is neither a package nor the machine
};

struct LayoutPart {
  LayoutKind kind = LayoutKind::machine;
  int number = -1;               // number of a package
  std::optional<int> numa = {};  // NUMA node at this part
  std::vector<std::size_t> children = {};
  int first_core = 0, cores = 0;

  bool holds(const LayoutPart& inner) const {
    return first_core <= inner.first_core && inner.first_core + inner.cores <= first_core + cores;
  }
};

class HwlocLayout {
 public:
  // All NUMA nodes and packages of `devices` will exist. Error(unsupported) when the host has more
  // parts than hwloc can represent here.
  HwlocLayout(const TopologyHost& host, const Topology& devices);

  const std::vector<LayoutPart>& parts() const { return parts_; }  // begins with the machine
  const std::vector<int>& numas() const { return numas_; }         // ascending
  int cores() const { return cores_; }
  // A core has the threads [first_thread(core), first_thread(core + 1)).
  int first_thread(int core) const;
  topology_sources::CpuSet cpus(const LayoutPart& part) const;
  topology_sources::CpuSet nodes(const LayoutPart& part) const;

  // The part for a device near a NUMA node and a package; -1 when unknown.
  std::size_t place(int numa, int package) const;
  // True if a reader finds the device near the same NUMA node and package again.
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
  std::vector<std::size_t> homes_;  // package of each NUMA node, if packages contain nodes
  int cores_ = 0, threads_ = 0;
};

}  // namespace atoll_v1::atoll

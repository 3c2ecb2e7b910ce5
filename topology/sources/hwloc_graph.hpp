// A loaded hwloc topology, read into atoll's.
#pragma once

#include <hwloc.h>

#include <memory>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::topology_sources {

struct HwlocDeleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, HwlocDeleter>;

struct BitmapDeleter {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

// Adds one host with its packages, NUMA nodes, cores, NVIDIA GPUs, OpenFabrics NICs and NVLinks.
// `host` brings id and name; `usable` are the hardware threads that the process may run on.
// `hwloc` must have been loaded with I/O objects: they are filtered out by default.
void add_host(hwloc_topology_t hwloc, TopologyHost host, hwloc_const_bitmap_t usable,
              Topology& topology);

}  // namespace atoll_v1::atoll::topology_sources

// Converts a topology that libhwloc has loaded to plain data.
#pragma once

#include <hwloc.h>

#include <memory>

#include "sources/hwloc_machine.hpp"

namespace atoll_v1::atoll::topology_sources {

struct HwlocDeleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, HwlocDeleter>;

struct BitmapDeleter {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

// Converts a machine that libhwloc has loaded. `usable` holds the hardware threads that the process
// may run on. `hwloc` must contain I/O objects, which hwloc filters out by default, and the
// processors and memory that control groups deny.
HwlocMachine describe(hwloc_topology_t hwloc, hwloc_const_bitmap_t usable);

}  // namespace atoll_v1::atoll::topology_sources

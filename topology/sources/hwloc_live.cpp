// Discovers this host with libhwloc.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "sources/hwloc_graph.hpp"
#include "sources/hwloc_loaded.hpp"
#include "sources/source.hpp"

// Functions of the leak checker; null when the process runs without one.
extern "C" {
[[gnu::weak]] void __lsan_disable();
[[gnu::weak]] void __lsan_enable();
}

namespace atoll_v1::atoll::topology_sources {
namespace {

// Disables leak checking. libpciaccess, which hwloc's PCI plugin uses, leaks 1 KiB on each load. It
// is unloaded before leaks are reported, so no suppression could name it.
class LeakPardon {
 public:
  LeakPardon() {
    if (__lsan_disable != nullptr) __lsan_disable();
  }
  LeakPardon(const LeakPardon&) = delete;
  LeakPardon& operator=(const LeakPardon&) = delete;
  ~LeakPardon() {
    if (__lsan_enable != nullptr) __lsan_enable();
  }
};

void require(int result, std::string_view step) {
  if (result != 0)
    throw Error(ErrorCode::io,
                fmt::format("hwloc cannot describe this host: {}: {}", step, std::strerror(errno)));
}

HwlocTopology load() {
  hwloc_topology_t raw = nullptr;
  require(hwloc_topology_init(&raw), "init");
  HwlocTopology topology(raw);
  // Without this filter hwloc reports no GPUs, NICs or NVLink matrix.
  require(hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT), "filter");
  // Includes cores that a control group denies; usable_threads() removes them below.
  require(hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED), "flags");
  // OpenCL, X11 and Level Zero provide nothing that is needed here, and CUDA nothing beyond NVML.
  // Each may take seconds to start.
  for (const char* component : {"opencl", "gl", "cuda", "levelzero"})
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  const LeakPardon pardon;
  require(hwloc_topology_load(raw), "load");
  return topology;
}

// Returns the threads that control groups and the binding of this process allow.
Bitmap usable_threads(hwloc_topology_t topology) {
  Bitmap usable(hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology)));
  Bitmap bound(hwloc_bitmap_alloc());
  if (!usable || !bound) throw Error(ErrorCode::out_of_memory, "hwloc: no memory for a bitmap");
  // HWLOC_XMLFILE makes hwloc describe another machine, where no binding applies.
  if (hwloc_topology_is_thissystem(topology) != 0 &&
      hwloc_get_cpubind(topology, bound.get(), HWLOC_CPUBIND_PROCESS) == 0)
    hwloc_bitmap_and(usable.get(), usable.get(), bound.get());
  return usable;
}

}  // namespace

void hwloc_live(const LiveRequest& request, Topology& topology) {
  const HwlocTopology hwloc = load();
  const Bitmap usable = usable_threads(hwloc.get());
  TopologyHost host;
  host.id = request.host_id;
  host.name = request.host_name;
  add_host(describe(hwloc.get(), usable.get()), std::move(host), topology);
}

}  // namespace atoll_v1::atoll::topology_sources

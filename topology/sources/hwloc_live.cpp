// Discovers this host with libhwloc.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "sources/hwloc_loaded.hpp"
#include "sources/hwloc_machine.hpp"
#include "sources/source.hpp"

// Functions of the leak checker; null when the process runs without one.
extern "C" {
[[gnu::weak]] void __lsan_disable();
[[gnu::weak]] void __lsan_enable();
}

namespace atoll_v1::atoll::topology_sources {
namespace {

std::string text(const char* value) { return value == nullptr ? std::string() : value; }

CpuSet to_set(hwloc_const_bitmap_t bitmap) {
  CpuSet set;
  if (bitmap == nullptr) return set;
  for (int i = hwloc_bitmap_first(bitmap); i >= 0 && i < static_cast<int>(CpuSet::most);
       i = hwloc_bitmap_next(bitmap, i))
    set.add(static_cast<unsigned>(i));
  return set;
}

int os_number(hwloc_obj_t object) {
  constexpr unsigned most = 1'000'000;
  return object->os_index < most ? static_cast<int>(object->os_index) : -1;
}

class Loaded {
 public:
  explicit Loaded(hwloc_topology_t hwloc) : hwloc_(hwloc) {}

  HwlocMachine read(hwloc_const_bitmap_t usable) {
    const hwloc_obj_t root = hwloc_get_root_obj(hwloc_);
    machine_.host_name = info(root, "HostName");
    machine_.version = info(root, "hwlocVersion");
    machine_.kernel = info(root, "OSRelease");
    machine_.product = info(root, "DMIProductName");
    machine_.asset_tag = info(root, "DMIChassisAssetTag");
    machine_.usable = to_set(usable);
    read_cores();
    read_devices();
    for (const std::string_view name : {nvlink_matrix, xgmi_matrix}) read_matrix(name);
    return std::move(machine_);
  }

 private:
  static std::string info(hwloc_obj_t object, const char* key) {
    return text(hwloc_obj_get_info_by_name(object, key));
  }

  template <class Visit>
  void each(hwloc_obj_type_t type, Visit&& visit) {
    for (hwloc_obj_t object = nullptr;
         (object = hwloc_get_next_obj_by_type(hwloc_, type, object)) != nullptr;)
      visit(object);
  }

  void read_cores() {
    each(HWLOC_OBJ_PU, [&](hwloc_obj_t pu) {
      ++machine_.thread_count;
      machine_.threads |= to_set(pu->cpuset);
    });
    each(HWLOC_OBJ_NUMANODE, [&](hwloc_obj_t node) {
      machine_.nodes.push_back({.number = os_number(node),
                                .cpus = to_set(node->cpuset),
                                .memory_bytes = node->attr->numanode.local_memory,
                                .subtype = text(node->subtype)});
    });
    each(HWLOC_OBJ_PACKAGE, [&](hwloc_obj_t package) {
      ends_[package] = {HwlocEndKind::package, machine_.packages.size()};
      machine_.packages.push_back({.number = os_number(package), .cpus = to_set(package->cpuset)});
    });
    each(HWLOC_OBJ_CORE, [&](hwloc_obj_t core) {
      machine_.cores.push_back(to_set(core->cpuset));
      if (HwlocPackage* const package = package_of(core)) ++package->cores;
    });
    for (const hwloc_obj_type_t type : {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE,
                                        HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L5CACHE})
      each(type, [&](hwloc_obj_t cache) {
        const auto& attr = cache->attr->cache;
        if (HwlocPackage* const package = package_of(cache))
          ++package->caches[{static_cast<int>(attr.depth), attr.size}];
      });
  }

  HwlocPackage* package_of(hwloc_obj_t part) {
    const auto found = ends_.find(hwloc_get_ancestor_obj_by_type(hwloc_, HWLOC_OBJ_PACKAGE, part));
    return found == ends_.end() ? nullptr : &machine_.packages[found->second.index];
  }

  std::optional<std::size_t> locality(hwloc_obj_t device) {
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(hwloc_, device);
    while (near != nullptr && (near->cpuset == nullptr || hwloc_bitmap_iszero(near->cpuset) != 0))
      near = near->parent;
    if (near == nullptr) return std::nullopt;
    const auto [at, is_new] = localities_.try_emplace(near, machine_.localities.size());
    if (is_new) machine_.localities.push_back(to_set(near->cpuset));
    return at->second;
  }

  // Returns the path from the root complex to the bridge above the device.
  static std::string path(hwloc_obj_t device) {
    std::string path;
    for (hwloc_obj_t bridge = device->parent; bridge != nullptr; bridge = bridge->parent) {
      if (bridge->type != HWLOC_OBJ_BRIDGE) return {};
      const auto& attr = bridge->attr->bridge;
      if (attr.upstream_type == HWLOC_OBJ_BRIDGE_HOST)
        return root_path(static_cast<unsigned>(attr.downstream.pci.domain),
                         attr.downstream.pci.secondary_bus) +
               path;
      path.insert(0, "/" + busid(pci_device(attr.upstream.pci)));
    }
    return {};
  }

  static HwlocPciDevice pci_device(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& attr) {
    return {{static_cast<unsigned>(attr.domain), attr.bus, attr.dev, attr.func},
            attr.vendor_id,
            attr.device_id,
            attr.class_id,
            static_cast<double>(attr.linkspeed)};
  }

  void read_devices() {
    for (hwloc_obj_t pci = nullptr; (pci = hwloc_get_next_pcidev(hwloc_, pci)) != nullptr;) {
      HwlocPciDevice device = pci_device(pci->attr->pcidev);
      device.subtype = text(pci->subtype);
      device.model = info(pci, "PCIDevice");
      device.path = path(pci);
      device.locality = locality(pci);
      ends_[pci] = {HwlocEndKind::pci, machine_.pci.size()};
      machine_.pci.push_back(std::move(device));
    }
    for (hwloc_obj_t os = nullptr; (os = hwloc_get_next_osdev(hwloc_, os)) != nullptr;) {
      HwlocOsDevice device{.name = text(os->name), .subtype = text(os->subtype)};
      if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK) device.kind = HwlocOsKind::network;
      if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)
        device.kind = HwlocOsKind::openfabrics;
      for (unsigned i = 0; i < os->infos_count; ++i)
        device.infos.emplace_back(text(os->infos[i].name), text(os->infos[i].value));
      device.pci = pci_of(os);
      device.locality = locality(os);
      ends_[os] = {HwlocEndKind::os, machine_.os.size()};
      machine_.os.push_back(std::move(device));
    }
  }

  std::optional<std::size_t> pci_of(hwloc_obj_t os) const {
    for (hwloc_obj_t above = os->parent; above != nullptr; above = above->parent)
      if (above->type == HWLOC_OBJ_PCI_DEVICE) return ends_.at(above).index;
    return std::nullopt;
  }

  void read_matrix(std::string_view name) {
    unsigned found = 1;
    hwloc_distances_s* distances = nullptr;
    if (hwloc_distances_get_by_name(hwloc_, name.data(), &found, &distances, 0) != 0 ||
        found == 0 || distances == nullptr)
      return;
    HwlocMatrix matrix{.name = std::string(name), .ends = {}, .values = {}};
    const std::size_t size = distances->nbobjs;
    for (std::size_t i = 0; i < size; ++i) {
      const auto end = ends_.find(distances->objs[i]);
      matrix.ends.push_back(end == ends_.end() ? HwlocEnd() : end->second);
    }
    matrix.values.assign(distances->values, distances->values + size * size);
    hwloc_distances_release(hwloc_, distances);
    if (size > most_hwloc_ends)
      fail(machine_, -1, fmt::format("{} has more than {} objects", name, most_hwloc_ends));
    machine_.matrices.push_back(std::move(matrix));
  }

  hwloc_topology_t hwloc_;
  HwlocMachine machine_;
  std::map<hwloc_obj_t, HwlocEnd> ends_;
  std::map<hwloc_obj_t, std::size_t> localities_;
};

// Disables leak checking. libpciaccess, which hwloc's PCI plugin uses, leaks 1 KiB on each load.
// The library is unloaded before leaks are reported, so no suppression could name it.
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
  // Without this call, hwloc leaves out I/O devices, and with them all GPUs, NICs and the NVLink
  // matrix.
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

// Returns the hardware threads on which this process may run, by its control group and its binding.
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

HwlocMachine describe(hwloc_topology_t hwloc, hwloc_const_bitmap_t usable) {
  return Loaded(hwloc).read(usable);
}

void hwloc_live(const LiveRequest& request, Topology& topology) {
  const HwlocTopology hwloc = load();
  const Bitmap usable = usable_threads(hwloc.get());
  TopologyHost host;
  host.id = request.host_id;
  host.name = request.host_name;
  add_host(describe(hwloc.get(), usable.get()), std::move(host), topology);
}

}  // namespace atoll_v1::atoll::topology_sources

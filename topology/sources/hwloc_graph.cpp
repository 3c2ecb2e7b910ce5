#include "sources/hwloc_graph.hpp"

#include <fmt/format.h>
#include <hwloc/distances.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "sources/nvlink_rate.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

constexpr unsigned vendor_nvidia = 0x10de;

std::string_view info(hwloc_obj_t object, const char* key) {
  const char* value = hwloc_obj_get_info_by_name(object, key);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

bool is_os_device(hwloc_obj_t object, hwloc_obj_osdev_type_t type) {
  return object->type == HWLOC_OBJ_OS_DEVICE && object->attr->osdev.type == type;
}

// The PCI device that an OS device hangs on; null for one without.
hwloc_obj_t pci_of(hwloc_obj_t object) {
  while (object != nullptr && object->type != HWLOC_OBJ_PCI_DEVICE) object = object->parent;
  return object;
}

// DDDD:BB:DD.F with the eight digits of the domain that NVML prints.
std::string busid(hwloc_obj_t pci) {
  const auto& at = pci->attr->pcidev;
  return fmt::format("{:08x}:{:02x}:{:02x}.{:x}", static_cast<unsigned>(at.domain), at.bus, at.dev,
                     at.func);
}

bool has_cores(hwloc_obj_t numa_node) { return hwloc_bitmap_iszero(numa_node->cpuset) == 0; }

// The NUMA node next to a device; -1 when the machine does not say which of several it is.
int numa_of(hwloc_topology_t hwloc, hwloc_obj_t device) {
  const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(hwloc, device);
  int found = -1;
  for (hwloc_obj_t node = nullptr;
       near != nullptr && (node = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, node));) {
    if (!has_cores(node) || hwloc_bitmap_isset(near->nodeset, node->os_index) == 0) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(node->os_index);
  }
  return found;
}

void count_cores(hwloc_topology_t hwloc, hwloc_const_bitmap_t usable, TopologyHost& host) {
  host.packages = std::max(0, hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PACKAGE));
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, node));) {
    if (!has_cores(node)) continue;  // memory of a GPU, or memory alone
    ++host.numa_nodes;
    host.memory_bytes += node->attr->numanode.local_memory;
  }
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_CORE, core));) {
    ++host.host_cores;
    if (hwloc_bitmap_intersects(core->cpuset, usable) != 0) ++host.cores;
  }
  host.host_threads = std::max(0, hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PU));
  host.threads = std::max(0, hwloc_bitmap_weight(usable));
  if (host.host_cores == 0) {  // some virtual machines show threads only
    host.host_cores = host.host_threads;
    host.cores = host.threads;
  }
}

// Number behind a name like "nvml3"; -1 when the name is another one.
int number_after(std::string_view name, std::string_view prefix) {
  int number = -1;
  if (name.starts_with(prefix))
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  return number;
}

// NVML and CUDA, where hwloc was built with them, know more than the PCI device.
void ask_os_devices(hwloc_obj_t pci, TopologyGpu& gpu) {
  for (hwloc_obj_t device = pci->io_first_child; device != nullptr; device = device->next_sibling) {
    if (device->type != HWLOC_OBJ_OS_DEVICE || device->name == nullptr) continue;
    if (const int number = number_after(device->name, "nvml"); number >= 0) gpu.index = number;
    if (const auto uuid = info(device, "NVIDIAUUID"); !uuid.empty()) gpu.uuid = uuid;
    if (const auto model = info(device, "GPUModel"); !model.empty()) gpu.model = model;
  }
}

using Names = std::map<hwloc_obj_t, std::string>;  // PCI device or package -> id

// hwloc goes by locality; NVML and people number by bus id.
std::vector<hwloc_obj_t> pci_devices(hwloc_topology_t hwloc) {
  std::vector<hwloc_obj_t> devices;
  for (hwloc_obj_t pci = nullptr; (pci = hwloc_get_next_pcidev(hwloc, pci));)
    devices.push_back(pci);
  std::ranges::sort(devices, {}, [](hwloc_obj_t pci) {
    const auto& at = pci->attr->pcidev;
    return std::tuple{at.domain, at.bus, at.dev, at.func};
  });
  return devices;
}

Names add_gpus(hwloc_topology_t hwloc, const std::string& host, Topology& topology) {
  Names names;
  int gpus = 0, switches = 0;
  for (const hwloc_obj_t pci : pci_devices(hwloc)) {
    const auto& device = pci->attr->pcidev;
    // A switch may show no vendor at all: the subtype is what counts.
    if (pci->subtype != nullptr && std::string_view(pci->subtype) == "NVSwitch") {
      names[pci] = fmt::format("{}/nvswitch{}", host, switches++);
      continue;
    }
    if (device.vendor_id != vendor_nvidia || (device.class_id >> 8) != 0x03) continue;
    TopologyGpu gpu;
    gpu.id = fmt::format("{}/gpu{}", host, gpus++);
    gpu.host = host;
    gpu.busid = busid(pci);
    gpu.model = info(pci, "PCIDevice");
    gpu.numa = numa_of(hwloc, pci);
    ask_os_devices(pci, gpu);
    names[pci] = gpu.id;
    topology.gpus.push_back(std::move(gpu));
  }
  for (hwloc_obj_t package = nullptr;
       (package = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_PACKAGE, package));)
    names[package] = fmt::format("{}/package{}", host, package->os_index);
  return names;
}

std::string port_state(std::string_view number) {
  if (number == "1") return "down";
  if (number == "2") return "init";
  if (number == "3") return "armed";
  if (number == "4") return "active";
  if (number == "5") return "deferred";
  return "";
}

void add_nics(hwloc_topology_t hwloc, const std::string& host, Topology& topology) {
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_osdev(hwloc, device));) {
    if (!is_os_device(device, HWLOC_OBJ_OSDEV_OPENFABRICS) || device->name == nullptr) continue;
    TopologyNic nic;
    nic.host = host;
    nic.adapter = info(device, "SysImageGUID");
    nic.numa = numa_of(hwloc, device);
    if (const hwloc_obj_t pci = pci_of(device); pci != nullptr) {
      nic.busid = busid(pci);
      const unsigned pci_class = pci->attr->pcidev.class_id;
      nic.layer = pci_class == 0x0207 ? "infiniband" : pci_class == 0x0200 ? "ethernet" : "";
    }
    for (int port = 1; port <= 16; ++port) {
      const auto state = info(device, fmt::format("Port{}State", port).c_str());
      if (port > 1 && state.empty()) break;
      nic.name = port == 1 ? device->name : fmt::format("{}:{}", device->name, port);
      nic.id = fmt::format("{}/{}", host, nic.name);
      nic.state = port_state(state);
      topology.nics.push_back(nic);
    }
  }
}

std::string_view hwloc_version(hwloc_topology_t hwloc) {
  return info(hwloc_get_root_obj(hwloc), "hwlocVersion");
}

// Up to 2.9.0 hwloc takes 50 GB/s for a link of generations 3 and 4, which carries 25.
bool doubles_nvlink(std::string_view version) {
  int major = 0, minor = 0, patch = 0;
  const auto* end = version.data() + version.size();
  auto read = [&, at = version.data()](int& number) mutable {
    const auto result = std::from_chars(at, end, number);
    at = result.ptr == end ? end : result.ptr + 1;
  };
  read(major), read(minor), read(patch);
  return !version.empty() && std::array{major, minor, patch} <= std::array{2, 9, 0};
}

struct Matrix {
  hwloc_distances_s* distances;
  hwloc_uint64_t at(unsigned row, unsigned column) const {
    // A pair may be given in one direction only.
    return std::max(distances->values[row * distances->nbobjs + column],
                    distances->values[column * distances->nbobjs + row]);
  }
};

TopologyLink make_link(const std::string& a, const std::string& b, double mbyte_s,
                       std::optional<NvlinkRate> rate, std::string_view version) {
  TopologyLink link{.a = a, .b = b, .type = "nvlink", .count = 1, .gbyte_s = mbyte_s / 1000};
  const bool generation_3_or_4 = rate && (rate->generation == 3 || rate->generation == 4);
  if (doubles_nvlink(version)) {
    if (generation_3_or_4) link.gbyte_s = *link.gbyte_s / 2;
    if (!rate) link.gbyte_s = std::nullopt;  // right or twice the truth
  }
  if (rate && link.gbyte_s)
    link.count = std::clamp(static_cast<int>(std::lround(*link.gbyte_s / rate->gbyte_s)), 1, 1024);
  return link;
}

// True when the matrix shows any link of a GPU.
bool add_links(hwloc_topology_t hwloc, const Matrix& matrix, const Names& names,
               Topology& topology) {
  const auto& distances = *matrix.distances;
  std::vector<std::string> ids(distances.nbobjs);
  std::vector<std::optional<NvlinkRate>> rates(distances.nbobjs);
  for (unsigned i = 0; i < distances.nbobjs; ++i) {
    const hwloc_obj_t object = distances.objs[i];
    if (object == nullptr) continue;
    const auto named = names.find(object->type == HWLOC_OBJ_PACKAGE ? object : pci_of(object));
    if (named == names.end()) continue;
    ids[i] = named->second;
    const auto gpu = std::ranges::find(topology.gpus, ids[i], &TopologyGpu::id);
    if (gpu != topology.gpus.end()) rates[i] = nvlink_rate(gpu->model);
  }
  bool any = false;
  for (unsigned i = 0; i < distances.nbobjs; ++i)
    for (unsigned j = i + 1; j < distances.nbobjs; ++j) {
      const auto mbyte_s = matrix.at(i, j);
      if (mbyte_s == 0 || ids[i].empty() || ids[j].empty() || ids[i] == ids[j]) continue;
      TopologyLink link = make_link(ids[i], ids[j], static_cast<double>(mbyte_s),
                                    rates[i] ? rates[i] : rates[j], hwloc_version(hwloc));
      // POWER joins GPUs and processors: that makes no island of two GPUs.
      if (distances.objs[i]->type == HWLOC_OBJ_PACKAGE ||
          distances.objs[j]->type == HWLOC_OBJ_PACKAGE)
        link.type = "nvlink_cpu";
      topology.links.push_back(std::move(link));
      any = true;
    }
  return any;
}

}  // namespace

void add_host(hwloc_topology_t hwloc, TopologyHost host, hwloc_const_bitmap_t usable,
              Topology& topology) {
  count_cores(hwloc, usable, host);
  const Names names = add_gpus(hwloc, host.id, topology);
  add_nics(hwloc, host.id, topology);
  unsigned found = 1;
  Matrix matrix{nullptr};
  if (hwloc_distances_get_by_name(hwloc, "NVLinkBandwidth", &found, &matrix.distances, 0) == 0 &&
      found > 0 && matrix.distances != nullptr) {
    if (add_links(hwloc, matrix, names, topology)) host.gpu_links = IslandState::known;
    hwloc_distances_release(hwloc, matrix.distances);
  }
  topology.hosts.push_back(std::move(host));
}

}  // namespace atoll_v1::atoll::topology_sources

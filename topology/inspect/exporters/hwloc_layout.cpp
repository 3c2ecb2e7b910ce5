#include "inspect/exporters/hwloc_devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sources/hwloc_machine.hpp"

namespace atoll_v1::atoll {
namespace {

using topology_sources::CpuSet;

constexpr int most_parts = 1024;
constexpr int most_threads = 16'384;
constexpr std::size_t most_gpus = topology_sources::most_hwloc_gpus;
constexpr std::size_t most_nics = topology_sources::most_hwloc_parts;

// Returns at least `wanted` numbers, sorted: the numbers in `seen`, completed by the lowest unused
// numbers.
std::vector<int> complete(std::set<int> seen, int wanted) {
  for (int number = 0; static_cast<int>(seen.size()) < std::max(1, wanted); ++number)
    seen.insert(number);
  return {seen.begin(), seen.end()};
}

bool fits(int number) { return number >= 0 && number < most_parts; }

}  // namespace

HwlocLayout::HwlocLayout(const TopologyHost& host, const Topology& devices) {
  const int threads = std::max({host.host_threads, host.threads, host.host_cores, host.cores});
  if (host.packages > most_parts || host.numa_nodes > most_parts || threads > most_threads)
    throw Error(ErrorCode::unsupported,
                fmt::format("the hwloc exporter supports at most {} packages, {} NUMA nodes and {} "
                            "hardware threads; {} has {}, {} and {}",
                            most_parts, most_parts, most_threads, host.name, host.packages,
                            host.numa_nodes, threads));
  if (devices.gpus.size() > most_gpus || devices.nics.size() > most_nics)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("the hwloc exporter supports at most {} GPUs and {} NICs; {} has {} and "
                    "{}",
                    most_gpus, most_nics, host.name, devices.gpus.size(), devices.nics.size()));
  number_parts(host, devices);
  homes_ = packages_of_numas(devices);
  const int leaves = static_cast<int>(std::max(numas_.size(), packages_.size()));
  cores_ = std::max({host.host_cores, host.cores, leaves});
  threads_ = std::max(threads, cores_);
  build();
  int leaf = 0;
  spread_cores(0, leaf, leaves);
}

void HwlocLayout::number_parts(const TopologyHost& host, const Topology& devices) {
  std::set<int> numas, packages;
  const auto see = [&](const auto& device) {
    if (device.host != host.id) return;
    if (fits(device.numa)) numas.insert(device.numa);
    if (fits(device.package)) packages.insert(device.package);
  };
  for (const TopologyGpu& gpu : devices.gpus) see(gpu);
  for (const TopologyNic& nic : devices.nics) see(nic);
  numas_ = complete(std::move(numas), host.numa_nodes);
  packages_ = complete(std::move(packages), host.packages);
}

// Returns the package of each NUMA node. The package of a node is known if a device reports both;
// the other nodes are distributed evenly. If that leaves a package without nodes, all nodes are
// distributed evenly.
std::vector<std::size_t> HwlocLayout::packages_of_numas(const Topology& devices) const {
  std::vector<std::size_t> even;
  for (std::size_t i = 0; i < numas_.size(); ++i)
    even.push_back(i * packages_.size() / numas_.size());
  if (numas_.size() < packages_.size()) return even;
  std::vector<std::size_t> homes = even;
  const auto see = [&](const auto& device) {
    const auto numa = std::ranges::find(numas_, device.numa);
    const auto package = std::ranges::find(packages_, device.package);
    if (numa != numas_.end() && package != packages_.end())
      homes[static_cast<std::size_t>(numa - numas_.begin())] =
          static_cast<std::size_t>(package - packages_.begin());
  };
  for (const TopologyGpu& gpu : devices.gpus) see(gpu);
  for (const TopologyNic& nic : devices.nics) see(nic);
  const std::set<std::size_t> used(homes.begin(), homes.end());
  return used.size() == packages_.size() ? homes : even;
}

std::size_t HwlocLayout::add(LayoutPart part, std::size_t parent) {
  parts_.push_back(std::move(part));
  parts_[parent].children.push_back(parts_.size() - 1);
  return parts_.size() - 1;
}

void HwlocLayout::build() {
  parts_.push_back({.kind = LayoutKind::machine});
  if (numas_.size() >= packages_.size()) {
    for (std::size_t i = 0; i < packages_.size(); ++i) {
      const auto package = add({.kind = LayoutKind::package, .number = packages_[i]}, 0);
      const auto nodes = std::ranges::count(homes_, i);
      for (std::size_t node = 0; node < numas_.size(); ++node) {
        if (homes_[node] != i) continue;
        if (nodes == 1)
          parts_[package].numa = numas_[node];
        else
          add({.kind = LayoutKind::group, .number = -1, .numa = numas_[node]}, package);
      }
    }
    return;
  }
  std::vector<std::size_t> groups;
  if (numas_.size() == 1) {
    parts_[0].numa = numas_[0];
    groups.push_back(0);
  } else {
    for (const int numa : numas_)
      groups.push_back(add({.kind = LayoutKind::group, .number = -1, .numa = numa}, 0));
  }
  for (std::size_t i = 0; i < packages_.size(); ++i)
    add({.kind = LayoutKind::package, .number = packages_[i]},
        groups[i * groups.size() / packages_.size()]);
}

// Distributes the cores over the parts depth first, so that the threads of each part have
// consecutive numbers.
void HwlocLayout::spread_cores(std::size_t part, int& leaf, int leaves) {
  const auto before = [&](int number) {
    return static_cast<int>(static_cast<long long>(cores_) * number / leaves);
  };
  parts_[part].first_core = before(leaf);
  if (parts_[part].children.empty()) ++leaf;
  for (const std::size_t child : parts_[part].children) spread_cores(child, leaf, leaves);
  parts_[part].cores = before(leaf) - parts_[part].first_core;
}

int HwlocLayout::first_thread(int core) const {
  return static_cast<int>(static_cast<long long>(threads_) * core / cores_);
}

CpuSet HwlocLayout::cpus(const LayoutPart& part) const {
  CpuSet set;
  const int end = first_thread(part.first_core + part.cores);
  for (int i = first_thread(part.first_core); i < end; ++i) set.add(static_cast<unsigned>(i));
  return set;
}

CpuSet HwlocLayout::nodes(const LayoutPart& part) const {
  CpuSet set;
  if (part.numa) set.add(static_cast<unsigned>(*part.numa));
  for (const std::size_t child : part.children) set |= nodes(parts_[child]);
  if (!set.empty()) return set;
  for (const LayoutPart& above : parts_)  // several packages may share one NUMA node
    if (above.numa && above.holds(part)) set.add(static_cast<unsigned>(*above.numa));
  return set;
}

std::optional<std::size_t> HwlocLayout::find(int numa, int package) const {
  for (std::size_t i = 0; i < parts_.size(); ++i)
    if ((numa >= 0 && parts_[i].numa == numa) ||
        (package >= 0 && parts_[i].kind == LayoutKind::package && parts_[i].number == package))
      return i;
  return std::nullopt;
}

std::size_t HwlocLayout::place(int numa, int package) const {
  const auto by_numa = find(numa, -1), by_package = find(-1, package);
  if (by_numa && by_package)  // choose the smaller of the two parts that contain the device
    return parts_[*by_numa].cores < parts_[*by_package].cores ? *by_numa : *by_package;
  return by_numa.value_or(by_package.value_or(0));
}

bool HwlocLayout::is_true(std::size_t place, int numa, int package) const {
  const auto within = [&](std::optional<std::size_t> other, int number) {
    if (number < 0) return true;  // an unknown NUMA node or package fits any part
    return other && parts_[*other].holds(parts_[place]);
  };
  return within(find(numa, -1), numa) && within(find(-1, package), package);
}

}  // namespace atoll_v1::atoll

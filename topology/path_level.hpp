// Distance between two devices of one host, in the levels of `nvidia-smi topo -m`.
#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// Location of a GPU or NIC within its host.
struct DeviceLocation {
  std::string_view id, host, pci_path;
  int numa = -1;
  int package = -1;
};
template <class Device>
DeviceLocation location_of(const Device& device) {
  return {device.id, device.host, device.pci_path, device.numa, device.package};
}

// Computes distances between devices. A distance that a source reports takes precedence over one
// derived from PCI paths and NUMA nodes. Keeps references to the topology.
class PathLevels {
 public:
  explicit PathLevels(const Topology& topology);
  // Returns the distance. Empty for devices of different hosts, and when no source provides the
  // distance.
  std::optional<PathLevel> between(const DeviceLocation& a, const DeviceLocation& b) const;
  // Returns the distance between the devices with these ids, if a source states it.
  std::optional<PathLevel> stated(std::string_view a, std::string_view b) const;

 private:
  std::map<std::pair<std::string_view, std::string_view>, PathLevel> stated_;
};

}  // namespace atoll_v1::atoll

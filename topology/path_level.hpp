// How far apart two devices of a host are.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// The place of a device, whichever it is.
struct DeviceLocation {
  std::string_view id, host, pci_path;
  int numa = -1;
  int package = -1;
};
DeviceLocation location_of(const TopologyGpu& gpu);
DeviceLocation location_of(const TopologyNic& nic);

// What a source states goes before what the PCI paths and NUMA nodes of the devices imply. Refers
// to the topology.
class PathLevels {
 public:
  explicit PathLevels(const Topology& topology);
  // Empty for devices of different hosts, and when no source tells.
  std::optional<PathLevel> between(const DeviceLocation& a, const DeviceLocation& b) const;

 private:
  std::map<std::pair<std::string_view, std::string_view>, PathLevel> stated_;
};

}  // namespace atoll_v1::atoll

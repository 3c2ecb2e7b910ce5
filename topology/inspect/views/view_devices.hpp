// Matches the devices in several views of one host.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// A device as one view shows it.
template <class Device>
struct Sight {
  std::size_t view = 0;
  const Device* device = nullptr;
};

// One device in all views that show it, the most trusted view first.
template <class Device>
struct DeviceGroup {
  std::string id;
  std::vector<Sight<Device>> sights;
};

struct MatchedDevices {
  std::vector<DeviceGroup<TopologyGpu>> gpus;
  std::vector<DeviceGroup<TopologyNic>> nics;
  // For each view: id in the view -> id of the group.
  std::vector<std::map<std::string, std::string>> ids;
};

// Each view must describe one host and must outlive the result. `origins` are the names of the
// views for error messages. Error(bad_data) when GPUs cannot be matched.
MatchedDevices match_devices(std::string_view host, const std::vector<Topology>& views,
                             const std::vector<std::string>& origins);

}  // namespace atoll_v1::atoll

// Which devices in several views of one host are one and the same.
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

// One device, as the views show it, the most trusted view first.
template <class Device>
struct DeviceGroup {
  std::string id;
  std::vector<Sight<Device>> sights;
};

struct MatchedDevices {
  std::vector<DeviceGroup<TopologyGpu>> gpus;
  std::vector<DeviceGroup<TopologyNic>> nics;
  std::vector<std::map<std::string, std::string>> ids;  // per view: its ids -> those of groups
};

// Refers to the views, each of which describes one host. `origins` name them in messages.
// Error(bad_data) when GPUs cannot be matched.
MatchedDevices match_devices(std::string_view host, const std::vector<Topology>& views,
                             const std::vector<std::string>& origins);

}  // namespace atoll_v1::atoll

// Compares several views of one host: the devices (view_devices.cpp) and the links
// (view_links.cpp). A view is the description of the host by one source.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// The description of a device in one view.
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
  // For each view, a map from the id of a device in the view to the id of the device's group.
  std::vector<std::map<std::string, std::string>> ids;
};

// Finds the devices that several views show. Each view must describe one host and must outlive the
// result. `origins` holds the names of the views for error messages. Error(bad_data) when GPUs
// cannot be matched.
MatchedDevices match_devices(std::string_view host, const std::vector<Topology>& views,
                             const std::vector<std::string>& origins);

// The links that one view shows. The ids of their ends are those of the merged topology.
struct LinkView {
  std::size_t view = 0;
  std::set<std::string> gpus;  // GPUs that the view shows
  std::vector<TopologyLink> links;
};

// True if both views show the same links among `gpus`; both views must contain these GPUs. Links of
// a GPU to several switches are added up. The views agree if the numbers of links are equal, or if
// both views have bandwidths and these are equal.
bool same_links(const LinkView& a, const LinkView& b, const std::set<std::string>& gpus);

// True if the view has the bandwidth of every link.
bool has_rates(const LinkView& view);

// Describes the links among `gpus`: "8 GPUs on a switch, 18 links each", "2 times 2 GPUs joined
// directly, 4 links each" or "no links".
std::string link_summary(const LinkView& view, const std::set<std::string>& gpus);

}  // namespace atoll_v1::atoll

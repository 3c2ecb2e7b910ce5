// Compares several views of one host: their devices (view_devices.cpp) and links (view_links.cpp).
#pragma once

#include <cstddef>
#include <map>
#include <set>
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

// The links in one view, with merged ids.
struct LinkView {
  std::size_t view = 0;
  std::set<std::string> gpus;  // GPUs that the view shows
  std::vector<TopologyLink> links;
};

// True if both views show the same links among `gpus`, which both must contain. Links of a GPU to
// several switches are added up. Numbers of links are compared, or bandwidths if the numbers differ
// and both views have bandwidths.
bool same_links(const LinkView& a, const LinkView& b, const std::set<std::string>& gpus);

bool has_rates(const LinkView& view);

// "8 GPUs on a switch, 18 links each", "2 times 2 GPUs joined directly, 4 links each" or "no
// links".
std::string link_summary(const LinkView& view, const std::set<std::string>& gpus);

}  // namespace atoll_v1::atoll

// Comparison of the links between GPUs in several views of one host.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

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

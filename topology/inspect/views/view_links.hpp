// The links between GPUs as several views of one host show them.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// What one view says of the links, under names that all views share.
struct LinkView {
  std::size_t view = 0;
  std::set<std::string> gpus;  // that it shows
  std::vector<TopologyLink> links;
};

// Whether both say the same of `gpus`, which both show. A GPU's links to several switches count
// together; numbers of links are compared, or rates where a source knows no numbers.
bool same_links(const LinkView& a, const LinkView& b, const std::set<std::string>& gpus);

bool has_rates(const LinkView& view);

// "8 GPUs on a switch, 18 links each", "2 times 2 GPUs joined directly, 4 links each", "no links"
std::string link_summary(const LinkView& view, const std::set<std::string>& gpus);

}  // namespace atoll_v1::atoll

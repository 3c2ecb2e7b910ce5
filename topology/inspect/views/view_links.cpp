#include "inspect/views/views.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

// A set of linked GPUs, with the number or bandwidth of their links.
struct Cluster {
  std::set<std::string> gpus;
  bool is_switched = false;
  std::map<std::string, double> of_gpu;  // number or bandwidth of all links of each GPU
  // Number or bandwidth of the direct links between each pair of GPUs.
  std::map<std::pair<std::string, std::string>, double> of_pairs;

  // True if both clusters have the same GPUs and links. Two GPUs on a switch are treated like two
  // GPUs with direct links, because some sources cannot show the switch.
  bool same(const Cluster& other) const {
    return gpus == other.gpus && of_gpu == other.of_gpu &&
           (gpus.size() == 2 || (is_switched == other.is_switched && of_pairs == other.of_pairs));
  }
};

double count_of(const TopologyLink& link) { return link.count; }
double rate_of(const TopologyLink& link) { return link.gbyte_s.value_or(0); }

// Returns the graph node for an end of a link: the GPU, or the switch if the end is no GPU. All
// switches of one host ("HOST/...") are one node.
std::string node_of(const LinkView& view, const std::string& end) {
  const std::size_t slash = end.rfind('/');
  return view.gpus.contains(end) || slash == std::string::npos ? end : end.substr(0, slash + 1);
}

// Finds the clusters of linked GPUs among `gpus`. A GPU without links is in no cluster.
class ClusterFinder {
 public:
  ClusterFinder(const LinkView& view, const std::set<std::string>& gpus) : gpus_(gpus) {
    for (const TopologyLink& link : view.links) {
      const auto is_left_out = [&](const std::string& end) {
        return view.gpus.contains(end) && !gpus.contains(end);
      };
      if (link.a == link.b || is_left_out(link.a) || is_left_out(link.b)) continue;
      TopologyLink& between = links_.emplace_back(link);
      between.a = node_of(view, link.a);
      between.b = node_of(view, link.b);
      next_[between.a].push_back(between.b);
      next_[between.b].push_back(between.a);
    }
  }

  std::vector<Cluster> find(double (*measure)(const TopologyLink&)) {
    std::vector<Cluster> clusters;
    std::map<std::string, std::size_t> cluster_of;  // for each node, the index of its cluster
    for (const std::string& gpu : gpus_) {
      if (!next_.contains(gpu) || cluster_of.contains(gpu)) continue;
      std::vector<std::string> nodes{gpu};
      cluster_of[gpu] = clusters.size();
      for (std::size_t i = 0; i < nodes.size(); ++i)
        for (const std::string& node : next_[nodes[i]])
          if (cluster_of.try_emplace(node, clusters.size()).second) nodes.push_back(node);
      Cluster& cluster = clusters.emplace_back();
      std::ranges::copy_if(nodes, std::inserter(cluster.gpus, cluster.gpus.end()),
                           [&](const std::string& node) { return gpus_.contains(node); });
    }
    for (const TopologyLink& link : links_) {
      const auto found = cluster_of.find(link.a);
      if (found == cluster_of.end()) continue;
      Cluster& cluster = clusters[found->second];
      for (const std::string* end : {&link.a, &link.b})
        if (gpus_.contains(*end)) cluster.of_gpu[*end] += measure(link);
      if (gpus_.contains(link.a) && gpus_.contains(link.b))
        cluster.of_pairs[std::minmax(link.a, link.b)] += measure(link);
      else
        cluster.is_switched = true;
    }
    return clusters;
  }

 private:
  const std::set<std::string>& gpus_;
  std::vector<TopologyLink> links_;  // links; their ends are nodes of the graph
  std::map<std::string, std::vector<std::string>> next_;
};

}  // namespace

bool has_rates(const LinkView& view) {
  return std::ranges::all_of(view.links,
                             [](const TopologyLink& link) { return link.gbyte_s.has_value(); });
}

bool same_links(const LinkView& a, const LinkView& b, const std::set<std::string>& gpus) {
  ClusterFinder one(a, gpus), other(b, gpus);
  const auto same_by = [&](double (*measure)(const TopologyLink&)) {
    return std::ranges::equal(one.find(measure), other.find(measure), &Cluster::same);
  };
  return same_by(count_of) || (has_rates(a) && has_rates(b) && same_by(rate_of));
}

std::string link_summary(const LinkView& view, const std::set<std::string>& gpus) {
  std::map<std::string, int> kinds;
  for (const Cluster& cluster : ClusterFinder(view, gpus).find(count_of)) {
    const auto [least, most] = std::ranges::minmax_element(
        cluster.of_gpu, {}, &std::map<std::string, double>::value_type::second);
    const auto count = static_cast<std::size_t>(most->second);
    ++kinds[fmt::format("{} {}, {}{} each", plural(cluster.gpus.size(), "GPU"),
                        cluster.is_switched ? "on a switch" : "joined directly",
                        least->second < most->second ? fmt::format("{} to ", least->second) : "",
                        plural(count, "link"))];
  }
  std::string text;
  for (const auto& [kind, times] : kinds)
    text +=
        (text.empty() ? "" : "; ") + (times == 1 ? kind : fmt::format("{} times {}", times, kind));
  return text.empty() ? "no links" : text;
}

}  // namespace atoll_v1::atoll

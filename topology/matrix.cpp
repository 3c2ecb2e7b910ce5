// GPUs x GPUs, one word a pair, for people.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "atoll/topology.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t most_gpus = 1024;

constexpr std::string_view legend =
    "\nNVn, XGn  n NVLink or xGMI links of this pair's own\n"
    "NV*, XG*  joined through switches or other GPUs of the island\n"
    "NODE      one NUMA node\n"
    "SYS       one host\n"
    "?         one host, but no source could see its links\n"
    "NET       the network\n";

class Matrix {
 public:
  explicit Matrix(const Topology& topology) : islands_(find_islands(topology)) {
    for (const TopologyLink& link : topology.links)
      if (link.type == "nvlink" || link.type == "xgmi") direct_[key(link.a, link.b)] += link.count;
    for (const Island& island : islands_)
      for (const std::string& gpu : island.gpus) island_of_[gpu] = &island;
  }

  std::string cell(const TopologyGpu& a, const TopologyGpu& b) const {
    if (a.id == b.id) return "X";
    const Island* island = island_of_.at(a.id);
    if (island == island_of_.at(b.id) && island->state == IslandState::known) {
      const std::string_view prefix = island->fabric == "xgmi" ? "XG" : "NV";
      const auto own = direct_.find(key(a.id, b.id));
      return own == direct_.end() ? fmt::format("{}*", prefix)
                                  : fmt::format("{}{}", prefix, own->second);
    }
    if (a.host != b.host) return "NET";
    if (island->state == IslandState::unknown) return "?";
    return a.numa >= 0 && a.numa == b.numa ? "NODE" : "SYS";
  }

 private:
  using Pair = std::pair<std::string, std::string>;
  static Pair key(const std::string& a, const std::string& b) { return std::minmax(a, b); }

  std::vector<Island> islands_;
  std::map<Pair, int> direct_;
  std::map<std::string, const Island*> island_of_;
};

}  // namespace

std::string to_matrix(const Topology& topology) {
  if (topology.gpus.empty()) return "no GPUs\n";
  if (topology.gpus.size() > most_gpus)
    throw Error(ErrorCode::unsupported,
                fmt::format("a matrix of {} GPUs is too wide to read; the limit is {}",
                            topology.gpus.size(), most_gpus));
  const Matrix matrix(topology);
  const DisplayNames names(topology);
  std::vector<std::string> labels;
  for (const TopologyGpu& gpu : topology.gpus)
    labels.push_back(topology.hosts.size() > 1 ? names.device(gpu.id)
                                               : gpu.id.substr(gpu.id.rfind('/') + 1));
  const std::size_t width =
      std::max<std::size_t>(4, std::ranges::max(labels, {}, &std::string::size).size());
  std::string text = fmt::format("{:{}}", "", width);
  for (const std::string& label : labels) text += fmt::format("  {:>{}}", label, width);
  text += '\n';
  for (std::size_t row = 0; row < labels.size(); ++row) {
    text += fmt::format("{:{}}", labels[row], width);
    for (const TopologyGpu& other : topology.gpus)
      text += fmt::format("  {:>{}}", matrix.cell(topology.gpus[row], other), width);
    text += '\n';
  }
  return text.append(legend);
}

}  // namespace atoll_v1::atoll

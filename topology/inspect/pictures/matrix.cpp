// Prints a matrix like `nvidia-smi topo -m`: a row for each GPU, a column for each GPU and NIC, and
// one word for the connection of each pair.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "atoll/tooling/inspection.hpp"
#include "inspect/pictures/paint.hpp"
#include "path_level.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t most_gpus = 1024;

struct Word {
  std::string_view word, meaning;
};
constexpr Word legend[] = {
    {"NVn", "n NVLinks, direct or to the switches of both"},
    {"NV*", "NVLink through other GPUs of the island"},
    {"XGn", "n xGMI links, direct or to the switches of both"},
    {"XG*", "xGMI through other GPUs of the island"},
    {"PIX", "at most one PCIe bridge"},
    {"PXB", "several PCIe bridges"},
    {"PHB", "the PCIe host bridge"},
    {"NODE", "one NUMA node"},
    {"PKG", "one processor package"},
    {"SYS", "the links between packages"},
    {"-", "an unknown path inside one host"},
    {"...?", "no source shows whether the two also have fast links"},
    {"NET", "the network"},
};

class Matrix {
 public:
  explicit Matrix(const Inspection& inspection)
      : topology_(inspection.topology), levels_(inspection.topology) {
    std::unordered_set<std::string_view> gpus;
    for (const TopologyGpu& gpu : topology_.gpus) gpus.insert(gpu.id);
    for (const TopologyLink& link : topology_.links) {
      if (link.type != "nvlink" && link.type != "xgmi") continue;
      links_[key(link.a, link.b)] += link.count;
      if (!gpus.contains(link.a)) switched_[link.b] += link.count;
      if (!gpus.contains(link.b)) switched_[link.a] += link.count;
    }
    for (const Island& island : inspection.islands)
      for (const std::string& gpu : island.gpus) island_of_[gpu] = &island;
  }

  std::string between(const TopologyGpu& a, const TopologyGpu& b) {
    if (a.id == b.id) return "X";
    const auto island_of = [&](const TopologyGpu& gpu) {
      const auto found = island_of_.find(gpu.id);
      return found == island_of_.end() ? nullptr : found->second;
    };
    const Island* const first = island_of(a);
    const Island* const island = first == island_of(b) ? first : nullptr;
    if (island != nullptr && island->state == IslandState::known) {
      const std::string prefix = island->fabric == "xgmi" ? "XG" : "NV";
      const auto own = links_.find(key(a.id, b.id));
      const int count =
          own == links_.end() ? std::min(switched_[a.id], switched_[b.id]) : own->second;
      used_.insert(prefix + (count == 0 ? "*" : "n"));
      return count == 0 ? prefix + "*" : fmt::format("{}{}", prefix, count);
    }
    if (island == nullptr || island->state != IslandState::unknown)
      return level(location_of(a), location_of(b));
    used_.insert("...?");
    return level(location_of(a), location_of(b)) + '?';
  }

  std::string between(const TopologyGpu& gpu, const TopologyNic& nic) {
    return level(location_of(gpu), location_of(nic));
  }

  std::string explain() const {
    std::string text = "\n";
    for (const auto& [word, meaning] : legend)
      if (used_.contains(std::string(word))) text += fmt::format("{:<6}{}\n", word, meaning);
    return text;
  }

 private:
  using Pair = std::pair<std::string_view, std::string_view>;
  static Pair key(const std::string& a, const std::string& b) {
    return std::minmax<std::string_view>(a, b);
  }

  std::string level(const DeviceLocation& a, const DeviceLocation& b) {
    std::string word = "NET";
    if (a.host == b.host) {
      const auto known = levels_.between(a, b);
      word = known ? name(*known) : "-";
    }
    used_.insert(word);
    return word;
  }

  const Topology& topology_;
  PathLevels levels_;
  std::map<Pair, int> links_;                           // links between two ends
  std::unordered_map<std::string_view, int> switched_;  // links of a GPU to switches
  std::unordered_map<std::string_view, const Island*> island_of_;
  std::set<std::string> used_;
};

std::string padded(Colour colour, const std::string& word, std::size_t width) {
  const std::string blanks(word.size() < width ? width - word.size() : 0, ' ');
  const bool fast = word.starts_with("NV") || word.starts_with("XG");
  const bool far = word == "SYS" || word == "NET" || word == "-";
  return "  " + blanks +
         (fast  ? paint(colour, Ink::green, word)
          : far ? paint(colour, Ink::dim, word)
                : word);
}

}  // namespace

std::string to_matrix(const Inspection& inspection, Colour colour) {
  const Topology& topology = inspection.topology;
  if (topology.gpus.empty()) return "no GPUs\n";
  if (topology.gpus.size() > most_gpus)
    throw Error(ErrorCode::unsupported,
                fmt::format("a matrix of {} GPUs is too wide to read; the limit is {}",
                            topology.gpus.size(), most_gpus));
  Matrix matrix(inspection);
  const DisplayNames names(topology);
  const auto label = [&](const std::string& id) {
    return topology.hosts.size() > 1 ? names.device(id) : printable(id.substr(id.rfind('/') + 1));
  };
  // NICs are shown only for a single host: with several hosts, nearly all cells would be NET.
  std::vector<const TopologyNic*> nics;
  if (topology.hosts.size() == 1)
    for (const TopologyNic& nic : topology.nics)
      if (!nic.is_virtual) nics.push_back(&nic);
  std::vector<std::string> labels;
  for (const TopologyGpu& gpu : topology.gpus) labels.push_back(label(gpu.id));
  for (const TopologyNic* nic : nics) labels.push_back(label(nic->id));
  const std::size_t width =
      std::max<std::size_t>(4, std::ranges::max(labels, {}, &std::string::size).size());
  std::string text = fmt::format("{:{}}", "", width);
  for (const std::string& column : labels) text += fmt::format("  {:>{}}", column, width);
  text += '\n';
  for (std::size_t row = 0; row < topology.gpus.size(); ++row) {
    const TopologyGpu& gpu = topology.gpus[row];
    text += fmt::format("{:{}}", labels[row], width);
    for (const TopologyGpu& other : topology.gpus)
      text += padded(colour, matrix.between(gpu, other), width);
    for (const TopologyNic* nic : nics) text += padded(colour, matrix.between(gpu, *nic), width);
    text += '\n';
  }
  return text + matrix.explain();
}

}  // namespace atoll_v1::atoll

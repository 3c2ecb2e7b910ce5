// Reads hwloc's matrices of links between GPUs.
//
// NVLinkBandwidth: MB/s in one direction, summed over the links of a pair; 0 for a pair without a
// direct link. Its rows are the GPUs, then the other ends of their links: packages on POWER, and
// NVSwitches. XGMIBandwidth: every value is the same constant, so only its presence counts. The
// diagonal means nothing. hwloc writes a matrix only if it found links, so a matrix of zeros was
// edited and proves nothing.
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "facts.hpp"
#include "gpu_models.hpp"
#include "parse_number.hpp"
#include "sources/hwloc_machine.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

// hwloc up to 2.9.0 reports 50 GB/s for a link of generations 3 and 4, which carries 25 GB/s.
bool doubles_nvlink(std::string_view version) {
  return !version.empty() && parse_version(version) <= std::array{2, 9, 0};
}

class LinkReader {
 public:
  LinkReader(const HwlocMachine& machine, const HwlocNames& names, Topology& topology)
      : machine_(machine), names_(names), topology_(topology) {
    for (const TopologyGpu& gpu : topology.gpus)
      if (gpu.host == names.host) gpus_.try_emplace(gpu.id, &gpu);
  }

  IslandState read() {
    const HwlocMatrix* nvlink = find(nvlink_matrix);
    const HwlocMatrix* xgmi = find(xgmi_matrix);
    const std::size_t before = topology_.links.size();
    if (nvlink != nullptr) add_nvlinks(*nvlink);
    if (xgmi != nullptr) add_xgmi(*xgmi);
    if (xgmi == nullptr) add_xgmi_peers();
    if (topology_.links.size() > before) return IslandState::known;
    return no_hives() || all_gpus(has_no_connector) ? IslandState::none : IslandState::unknown;
  }

 private:
  const HwlocMatrix* find(std::string_view name) const {
    const auto found = std::ranges::find(machine_.matrices, name, &HwlocMatrix::name);
    return found == machine_.matrices.end() ? nullptr : &*found;
  }

  // Returns the id of the GPU, switch or package of a row; "" for any other object.
  std::string id(const HwlocEnd& end) const {
    const auto found = names_.ids.find(end);
    return found == names_.ids.end() ? std::string() : found->second;
  }

  std::vector<std::string> ids(const HwlocMatrix& matrix) const {
    std::vector<std::string> all;
    for (const HwlocEnd& end : matrix.ends) all.push_back(id(end));
    return all;
  }

  const GpuModel* model(const std::string& id) const {
    const auto gpu = gpus_.find(id);
    return gpu == gpus_.end() ? nullptr : find_gpu_model(*gpu->second);
  }

  // Some matrices contain a pair in one direction only, so the larger value counts.
  static std::uint64_t between(const HwlocMatrix& matrix, std::size_t a, std::size_t b) {
    return std::max(matrix.at(a, b), matrix.at(b, a));
  }

  void add_nvlinks(const HwlocMatrix& matrix) {
    const std::vector<std::string> ends = ids(matrix);
    for (std::size_t i = 0; i < ends.size(); ++i)
      for (std::size_t j = i + 1; j < ends.size(); ++j) {
        const std::uint64_t mbyte_s = between(matrix, i, j);
        if (mbyte_s == 0 || ends[i].empty() || ends[j].empty() || ends[i] == ends[j]) continue;
        if (!gpus_.contains(ends[i]) && !gpus_.contains(ends[j])) continue;
        TopologyLink link{.a = ends[i], .b = ends[j], .type = "nvlink"};
        // On POWER, NVLink also joins GPUs to processors. Such links form no islands, so they have
        // a type of their own.
        if (matrix.ends[i].kind == HwlocEndKind::package ||
            matrix.ends[j].kind == HwlocEndKind::package)
          link.type = "nvlink_cpu";
        set_rate(static_cast<double>(mbyte_s), link);
        topology_.links.push_back(std::move(link));
      }
  }

  void set_rate(double mbyte_s, TopologyLink& link) const {
    const GpuModel* rate = model(link.a) != nullptr ? model(link.a) : model(link.b);
    link.gbyte_s = mbyte_s / 1000;
    if (doubles_nvlink(machine_.version)) {
      if (rate == nullptr) {  // the matrix holds either the true bandwidth or twice as much
        link.gbyte_s.reset();
        return;
      }
      if (rate->generation == 3 || rate->generation == 4) link.gbyte_s = *link.gbyte_s / 2;
    }
    if (rate == nullptr || rate->link_gbyte_s <= 0) return;
    const double links = *link.gbyte_s / rate->link_gbyte_s;
    link.count = static_cast<int>(std::lround(std::clamp(links, 1.0, 1024.0)));
  }

  // Partitions of one GPU have separate rows, but add only one link to the GPU.
  void add_xgmi(const HwlocMatrix& matrix) {
    const std::vector<std::string> ends = ids(matrix);
    for (std::size_t i = 0; i < ends.size(); ++i)
      for (std::size_t j = i + 1; j < ends.size(); ++j)
        if (between(matrix, i, j) != 0) join(ends[i], ends[j]);
  }

  void join(const std::string& a, const std::string& b) {
    if (a == b || !gpus_.contains(a) || !gpus_.contains(b)) return;
    if (joined_.emplace(std::min(a, b), std::max(a, b)).second)
      topology_.links.push_back({.a = a, .b = b, .type = "xgmi"});
  }

  // Reads "rsmi1 rsmi2 ", the list of GPUs that a GPU has links to.
  void add_xgmi_peers() {
    std::map<std::string_view, const std::string*> by_name;
    for (const auto& [end, id] : names_.ids)
      if (end.kind == HwlocEndKind::os) by_name.try_emplace(machine_.os[end.index].name, &id);
    for (const auto& [end, id] : names_.ids) {
      if (end.kind != HwlocEndKind::os) continue;
      for (const std::string_view peer : words_of(machine_.os[end.index].info("XGMIPeers")))
        if (const auto found = by_name.find(peer); found != by_name.end()) join(id, *found->second);
    }
  }

  bool all_gpus(bool (*holds)(const TopologyGpu&)) const {
    return !gpus_.empty() &&
           std::ranges::all_of(gpus_, [&](const auto& gpu) { return holds(*gpu.second); });
  }

  bool no_hives() const {
    return all_gpus(
        [](const TopologyGpu& gpu) { return get_fact(gpu.facts, fact::xgmi_hive) == "0"; });
  }

  const HwlocMachine& machine_;
  const HwlocNames& names_;
  Topology& topology_;
  std::map<std::string, const TopologyGpu*> gpus_;
  std::set<std::pair<std::string, std::string>> joined_;
};

}  // namespace

IslandState add_links(const HwlocMachine& machine, const HwlocNames& names, Topology& topology) {
  return LinkReader(machine, names, topology).read();
}

}  // namespace atoll_v1::atoll::topology_sources

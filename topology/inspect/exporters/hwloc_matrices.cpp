#include "inspect/exporters/hwloc_matrices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "facts.hpp"
#include "gpu_models.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr double own_mbyte_s = 1'000'000;  // value that hwloc writes on the diagonal of a matrix
constexpr double xgmi_mbyte_s = 100'000;   // value that hwloc writes for every xGMI link
constexpr double least_mbyte_s = 1;
constexpr double most_mbyte_s = 1e12;
constexpr std::size_t values_per_line = 10;

// Prints the words in XML elements of several words each, as libhwloc does. The attribute
// `length` must be exact for libhwloc's built-in parser.
void print_lines(std::string_view tag, const std::vector<std::string>& words, std::string& text) {
  for (std::size_t i = 0; i < words.size(); i += values_per_line) {
    std::string line;
    for (std::size_t j = i; j < std::min(words.size(), i + values_per_line); ++j)
      line += words[j] + ' ';
    text += fmt::format("    <{0} length=\"{1}\">{2}</{0}>\n", tag, line.size(), line);
  }
}

}  // namespace

HwlocMatrices::HwlocMatrices(const Topology& topology, const HwlocDevices& devices,
                             const HwlocLayout& layout, std::vector<std::string>& lost)
    : lost_(lost), host_(topology.hosts.front().id) {
  for (const auto& slot : devices.slots)
    for (const TopologyGpu* gpu : slot->gpus) ordered_gpus_.push_back(gpu->id);
  gpus_.insert(ordered_gpus_.begin(), ordered_gpus_.end());
  for (const LayoutPart& part : layout.parts())
    if (part.kind == LayoutKind::package)
      packages_.insert(fmt::format("{}/package{}", host_, part.number));
  read_links(topology);
  if (without_rate_ > 0) {
    lost_.push_back(fmt::format("all links, because {} without a rate",
                                without_rate_ == 1
                                    ? "an NVLink pair is"
                                    : fmt::format("{} NVLink pairs are", without_rate_)));
    nvlink_.clear();
    switch_names_.clear();
  }
  name_switches(devices);
  add_nvlinks(devices);
  if (!xgmi_.empty())
    matrices_.push_back(
        {.name = topology_sources::xgmi_matrix, .ends = ordered_gpus_, .mbyte_s = xgmi_});
  add_zeros(topology, devices);
}

void HwlocMatrices::read_links(const Topology& topology) {
  std::map<std::string, std::size_t> others;  // number of omitted links of each type
  bool counts_lost = false, rates_lost = false;
  std::map<std::string_view, const GpuModel*> models;
  for (const TopologyGpu& gpu : topology.gpus) models[gpu.id] = find_gpu_model(gpu);
  for (const TopologyLink& link : topology.links) {
    if (link.a == link.b) continue;
    const Pair pair = is_gpu(link.a) ? Pair(link.a, link.b) : Pair(link.b, link.a);
    const bool to_gpu = is_gpu(pair.second), to_package = packages_.contains(pair.second);
    const bool written =
        is_gpu(pair.first) && (link.type == "nvlink" ? !to_package
                               : link.type == "xgmi" ? to_gpu
                                                     : link.type == "nvlink_cpu" && to_package);
    if (!written) {
      ++others[link.type];
      continue;
    }
    if (link.type == "xgmi") {
      rates_lost = rates_lost || link.gbyte_s.has_value();
      counts_lost = counts_lost || link.count != 1;
      xgmi_[pair] = xgmi_mbyte_s;
      continue;
    }
    const double mbyte_s = link.gbyte_s.value_or(0) * 1000;
    if (!(mbyte_s >= least_mbyte_s && mbyte_s <= most_mbyte_s)) ++without_rate_;
    counts_lost = counts_lost || (link.count != 1 && models[pair.first] == nullptr);
    const bool turned = to_gpu && nvlink_.contains({pair.second, pair.first});
    nvlink_[turned ? Pair(pair.second, pair.first) : pair] += mbyte_s;
    if (!to_gpu && !to_package) switch_names_.insert(pair.second);
  }
  for (const auto& [type, count] : others)
    lost_.push_back(fmt::format("{} of type {}", plural(count, "link"), type));
  if (rates_lost) lost_.emplace_back("rates of xGMI links");
  if (counts_lost) lost_.emplace_back("the number of links of each pair of GPUs");
}

void HwlocMatrices::name_switches(const HwlocDevices& devices) {
  std::vector<std::string> names(switch_names_.begin(), switch_names_.end());
  std::ranges::sort(names, natural_less);
  const auto used = [&](unsigned domain) {
    return std::ranges::any_of(devices.slots,
                               [&](const auto& slot) { return slot->pci.domain == domain; });
  };
  unsigned domain = 0xffff;
  while (domain > 0 && used(domain)) --domain;
  std::vector<std::string> elsewhere;
  for (const std::string& name : names) {
    HwlocSwitch device{.name = name, .pci = {}};
    const auto number = static_cast<unsigned>(switches_.size());
    device.pci.domain = domain;
    device.pci.bus = (number / 32) & 0xff;
    device.pci.slot = number % 32;
    device.id = new_id();
    set_id(name, "PCIDev", device.id);
    switches_.push_back(std::move(device));
    if (!name.starts_with(host_ + "/")) elsewhere.push_back(name);
  }
  if (!names.empty())
    lost_.push_back(
        fmt::format("the real bus ids of {} NVSwitch{}, which get ids in PCI domain {:04x}",
                    names.size(), names.size() == 1 ? "" : "es", domain));
  if (!elsewhere.empty())
    lost_.push_back(
        fmt::format("the information that {} also connects other hosts", enumerate(elsewhere)));
}

void HwlocMatrices::add_nvlinks(const HwlocDevices& devices) {
  if (nvlink_.empty()) return;
  Matrix matrix{.name = topology_sources::nvlink_matrix, .ends = {}, .mbyte_s = nvlink_};
  std::ranges::copy_if(ordered_gpus_, std::back_inserter(matrix.ends), [&](const std::string& id) {
    return devices.gpus.at(id).driver != GpuDriver::rsmi;
  });
  std::set<std::string> ends(matrix.ends.begin(), matrix.ends.end());
  // NVLinks of an AMD GPU are probably an error in the topology, but they are written.
  for (const auto& [pair, unused] : nvlink_)
    for (const std::string* end : {&pair.first, &pair.second})
      if (!switch_names_.contains(*end) && ends.insert(*end).second) matrix.ends.push_back(*end);
  for (const HwlocSwitch& device : switches_) matrix.ends.push_back(device.name);
  if (matrix.ends.size() > topology_sources::most_hwloc_ends) {
    lost_.push_back(fmt::format("the links between {} GPUs and switches, which are too many",
                                matrix.ends.size()));
    return;
  }
  matrices_.push_back(std::move(matrix));
}

void HwlocMatrices::add_zeros(const Topology& topology, const HwlocDevices& devices) {
  const bool none = topology.hosts.front().gpu_links != IslandState::unknown;
  if (!none || !matrices_.empty() || gpus_.empty() || without_rate_ > 0) return;
  if (gpus_.size() < 2) {
    lost_.emplace_back("the information that the GPU has no links");
    return;
  }
  const bool has_amd = std::ranges::any_of(
      devices.gpus, [](const auto& gpu) { return gpu.second.driver == GpuDriver::rsmi; });
  matrices_.push_back(
      {.name = has_amd ? topology_sources::xgmi_matrix : topology_sources::nvlink_matrix,
       .ends = ordered_gpus_,
       .mbyte_s = {},
       .zeros = true});
}

void HwlocMatrices::set_id(const std::string& name, std::string_view type, std::uint64_t id) {
  ids_[name] = {std::string(type), id};
}

std::string HwlocMatrices::text() const {
  std::string text;
  for (const Matrix& matrix : matrices_) print(matrix, text);
  return text;
}

void HwlocMatrices::print(const Matrix& matrix, std::string& text) const {
  std::set<std::string> types;
  for (const std::string& end : matrix.ends) types.insert(ids_.at(end).first);
  const bool mixed = types.size() > 1;
  std::vector<std::string> indexes, values;
  for (const std::string& row : matrix.ends) {
    const auto& [type, id] = ids_.at(row);
    indexes.push_back(mixed ? fmt::format("{}:{}", type, id) : fmt::format("{}", id));
    for (const std::string& column : matrix.ends) {
      double value = row == column && !matrix.zeros ? own_mbyte_s : 0;
      for (const Pair& pair : {Pair(row, column), Pair(column, row)})
        if (const auto found = matrix.mbyte_s.find(pair); found != matrix.mbyte_s.end())
          value = found->second;
      values.push_back(fmt::format("{}", std::llround(value)));
    }
  }
  text += mixed ? fmt::format("  <distances2hetero nbobjs=\"{}\" kind=\"25\" name=\"{}\">\n",
                              matrix.ends.size(), matrix.name)
                : fmt::format(
                      "  <distances2 type=\"{}\" nbobjs=\"{}\" kind=\"9\" name=\"{}\" "
                      "indexing=\"gp\">\n",
                      *types.begin(), matrix.ends.size(), matrix.name);
  print_lines("indexes", indexes, text);
  print_lines("u64values", values, text);
  text += mixed ? "  </distances2hetero>\n" : "  </distances2>\n";
}

}  // namespace atoll_v1::atoll

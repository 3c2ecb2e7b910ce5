// Prints a machine and a mesh plan as text for people.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <unordered_map>

#include "atoll/tooling/inspection.hpp"
#include "facts.hpp"
#include "inspect/derived.hpp"
#include "inspect/pictures/paint.hpp"
#include "path_level.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t most_islands = 32;
constexpr std::size_t most_rails = 32;
constexpr int most_rows = 32;

std::string joined(std::initializer_list<std::string> parts) {
  std::string text;
  for (const std::string& part : parts)
    if (!part.empty()) text += (text.empty() ? "" : "  ") + part;
  return text;
}

std::string count(int number, std::string_view noun) {
  return plural(static_cast<std::size_t>(std::max(0, number)), noun);
}

// Describes a host: "2 packages, 2 NUMA nodes, 64 cores (128 threads), 503 GiB". Unknown parts are
// left out.
std::string host_line(const TopologyHost& host) {
  std::vector<std::string> parts;
  if (host.packages > 0) parts.push_back(count(host.packages, "package"));
  if (host.numa_nodes > 0) parts.push_back(count(host.numa_nodes, "NUMA node"));
  if (host.host_cores > 0)
    parts.push_back(
        fmt::format("{} ({})", count(host.host_cores, "core"), count(host.host_threads, "thread")));
  else if (host.host_threads > 0)
    parts.push_back(count(host.host_threads, "thread"));
  if (host.threads != host.host_threads)
    parts.push_back(fmt::format("of which {} ({}) may be used", count(host.cores, "core"),
                                count(host.threads, "thread")));
  if (host.memory_bytes > 0) parts.push_back(gib_text(static_cast<double>(host.memory_bytes)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string last_part(const std::string& id) { return printable(id.substr(id.rfind('/') + 1)); }

// Lists ranks as ranges: "0-7, 12". A list of more than 16 ranges is cut.
std::string ranks_text(std::span<const int> ranks) {
  constexpr int most_pieces = 16;
  std::string text = number_ranges(ranks);
  std::size_t end = 0;
  for (int piece = 0; piece < most_pieces && end != std::string::npos; ++piece)
    end = text.find(", ", end == 0 ? 0 : end + 2);
  return end == std::string::npos ? text : text.substr(0, end) + ", ...";
}

// Describes a mesh plan: shape, reason, shard groups and findings.
std::string to_text(const MeshPlan& plan, Colour colour) {
  const bool has_tensor = plan.tensor > 1;
  const std::string shape =
      has_tensor ? fmt::format("mesh {}x{}x{}", plan.replicate, plan.shard, plan.tensor)
                 : fmt::format("mesh {}x{}", plan.replicate, plan.shard);
  std::string text =
      fmt::format("{} ({})\n  {}\n", paint(colour, Ink::bold, shape),
                  has_tensor ? "replicate x shard x tensor" : "replicate x shard", plan.why);
  const std::size_t row =
      static_cast<std::size_t>(plan.shard) * static_cast<std::size_t>(plan.tensor);
  const std::span<const int> order(plan.order);
  // With tensor parallelism (tensor ranks), a row of the mesh contains several shard groups.
  const std::string_view group = has_tensor ? "replica" : "shard group";
  for (int i = 0; i < std::min(plan.replicate, most_rows); ++i)
    text += fmt::format("  {} {}: ranks {}\n", group, i,
                        ranks_text(order.subspan(static_cast<std::size_t>(i) * row, row)));
  if (plan.replicate > most_rows)
    text += fmt::format("  and {} more {}s\n", plan.replicate - most_rows, group);
  if (!plan.left_out.empty())
    text += fmt::format("  faster without ranks {}\n", ranks_text(plan.left_out));
  for (const Finding& finding : plan.findings)
    text +=
        fmt::format("  {}: {}\n", paint(colour, ink_of(finding.severity), name(finding.severity)),
                    to_line(finding));
  return text;
}

class Tree {
 public:
  Tree(const Inspection& inspection, Colour colour)
      : all_(inspection),
        topology_(inspection.topology),
        colour_(colour),
        names_(topology_),
        levels_(topology_),
        pcie_limits_(find_pcie_limits(topology_)),
        all_cores_(find_cores_affinity(topology_)) {
    for (const CoresAffinity& cores : all_cores_) cores_[cores.host].push_back(&cores);
    for (const Affinity& affinity : inspection.affinity) affinity_[affinity.gpu] = &affinity;
    for (const TopologyGpu& gpu : topology_.gpus) gpus_[gpu.host].push_back(&gpu);
    for (const TopologyNic& nic : topology_.nics) nics_[nic.host].push_back(&nic);
  }

  std::string text() {
    text_ = paint(colour_, Ink::bold,
                  fmt::format("{}, {}, {}, {}", plural(topology_.hosts.size(), "host"),
                              plural(topology_.gpus.size(), "GPU"),
                              plural(topology_.nics.size(), "NIC"),
                              plural(all_.islands.size(), "island"))) +
            '\n';
    if (all_.plan) text_ += to_text(*all_.plan, colour_) + '\n';
    append_hosts();
    append_islands();
    append_rails();
    append_findings();
    return std::move(text_);
  }

 private:
  // Returns the distance of a GPU from the farthest of its NICs.
  std::optional<PathLevel> level_of(const TopologyGpu& gpu,
                                    const std::vector<std::string>& nics) const {
    std::optional<PathLevel> farthest;
    const auto here = nics_.find(gpu.host);
    if (here == nics_.end()) return std::nullopt;
    for (const TopologyNic* nic : here->second) {
      if (std::ranges::find(nics, nic->id) == nics.end()) continue;
      const auto level = levels_.between(location_of(gpu), location_of(*nic));
      if (!level) return std::nullopt;
      farthest = std::max(farthest.value_or(*level), *level);
    }
    return farthest;
  }

  std::string gpu_line(const TopologyGpu& gpu) const {
    std::string use;
    const auto found = affinity_.find(gpu.id);
    if (found != affinity_.end() && !found->second->use.empty()) {
      std::vector<std::string> nics;
      for (const std::string& id : found->second->use) nics.push_back(last_part(id));
      use = "-> " + enumerate(nics, 4);
      if (const auto level = level_of(gpu, found->second->use))
        use += fmt::format(" ({})", name(*level));
    }
    const std::string partitions =
        gpu.partitions.empty() ? "" : plural(gpu.partitions.size(), "partition");
    return joined({last_part(gpu.id), gpu.model.empty() ? "GPU" : printable(gpu.model),
                   printable(gpu.busid), partitions, paint(colour_, Ink::dim, use)});
  }

  std::string nic_line(const TopologyNic& nic) const {
    std::string rate;
    if (nic.rate_gbit_s)
      rate = fmt::format("{:g} Gbit/s ({})", *nic.rate_gbit_s, printable(nic.evidence));
    const auto pcie = pcie_limits_[static_cast<std::size_t>(&nic - topology_.nics.data())];
    if (pcie)
      rate += fmt::format("{}at most {:.0f} Gbit/s over PCIe", rate.empty() ? "" : ", ", *pcie);
    const std::string state = nic.state.empty() ? "state unknown" : printable(nic.state);
    const Ink ink = nic.state.empty() ? Ink::dim : nic.state == "active" ? Ink::green : Ink::red;
    return joined({printable(nic.name), printable(nic.layer), nic.is_virtual ? "virtual" : "",
                   paint(colour_, ink, state), rate, nic.busid});
  }

  // Describes the NICs of ranks that use CPU memory, with the reason. A host with a single NUMA
  // node leaves no choice, so there the names suffice.
  std::string cores_line(const Affinity& affinity, bool is_single_node) const {
    std::string why = printable(affinity.why);
    if (is_single_node && !affinity.use.empty()) {
      std::vector<std::string> nics;
      for (const std::string& id : affinity.use) nics.push_back(last_part(id));
      why = enumerate(nics);
    }
    return affinity.use.empty() ? "ranks on CPU memory: " + why
                                : "ranks on CPU memory  " + paint(colour_, Ink::dim, "-> " + why);
  }

  // Returns the text to print below a host's name. Hosts with equal texts are printed once.
  std::string body(const TopologyHost& host) const {
    std::string text = host_line(host).empty() ? "" : fmt::format("  {}\n", host_line(host));
    std::map<std::string_view, std::vector<int>> packages;  // numbers of equal packages
    for (const auto& [number, package] : packages_of(host)) packages[package].push_back(number);
    for (const auto& [package, numbers] : packages)
      text += fmt::format("  {} {}: {}{}\n", numbers.size() == 1 ? "package" : "packages",
                          number_ranges(numbers), printable(package),
                          numbers.size() == 1 ? "" : " each");
    std::map<int, std::vector<std::string>> by_numa;
    if (const auto gpus = gpus_.find(host.id); gpus != gpus_.end())
      for (const TopologyGpu* gpu : gpus->second) by_numa[gpu->numa].push_back(gpu_line(*gpu));
    if (const auto nics = nics_.find(host.id); nics != nics_.end())
      for (const TopologyNic* nic : nics->second) by_numa[nic->numa].push_back(nic_line(*nic));
    const bool is_single_node = host.numa_nodes == 1;
    // On hosts with GPUs, ranks use GPU memory, so these lines are left out.
    if (const auto all = cores_.find(host.id); all != cores_.end() && !gpus_.contains(host.id))
      for (const CoresAffinity* cores : all->second) {
        const std::string line = cores_line(cores->affinity, is_single_node);
        if (cores->numa < 0)
          text += fmt::format("  {}\n", line);
        else
          by_numa[cores->numa].push_back(line);
      }
    // If the host has one NUMA node, devices without a known node are listed under that node.
    if (auto unknown = by_numa.extract(-1); is_single_node && !unknown.empty()) {
      std::vector<std::string>& lines = by_numa[by_numa.empty() ? 0 : by_numa.begin()->first];
      lines.insert(lines.begin(), unknown.mapped().begin(), unknown.mapped().end());
    } else if (!unknown.empty()) {
      by_numa.insert(std::move(unknown));
    }
    for (const auto& [numa, lines] : by_numa) {
      text += numa < 0 ? "  NUMA node unknown\n" : fmt::format("  NUMA node {}\n", numa);
      for (const std::string& line : lines) text += fmt::format("    {}\n", line);
    }
    return text;
  }

  void append_hosts() {
    // Equal texts are printed once: each text, with the names of the hosts that it describes.
    std::vector<std::pair<std::string, std::vector<std::string>>> groups;
    std::unordered_map<std::string, std::size_t> numbers;
    for (const TopologyHost& host : topology_.hosts) {
      std::string one = body(host);
      const auto [at, is_new] = numbers.try_emplace(one, groups.size());
      if (is_new) groups.push_back({std::move(one), {}});
      groups[at->second].second.push_back(names_.host(host.id));
    }
    for (const auto& [shown, hosts] : groups) {
      if (hosts.size() == 1)
        text_ += paint(colour_, Ink::bold, "host " + hosts.front()) + '\n';
      else
        text_ +=
            fmt::format("{}: {}\n", paint(colour_, Ink::bold, plural(hosts.size(), "equal host")),
                        enumerate(hosts, 6));
      text_ += shown;
    }
  }

  std::string island_line(const Island& island) const {
    if (island.gpus.empty()) return fmt::format("CPUs of {}", names_.host(island.hosts.front()));
    std::string text =
        fmt::format("{}  {}", plural(island.gpus.size(), "GPU"), names_.gpus(island.gpus));
    if (island.state == IslandState::none) return text + "  no fast links";
    if (island.state == IslandState::unknown)
      return text + paint(colour_, Ink::yellow, "  links unknown: no source shows them");
    text += fmt::format("  {}", printable(fabric_name(island.fabric)));
    if (island.gpu_gbyte_s) text += fmt::format("  {:.4g} GB/s a GPU", *island.gpu_gbyte_s);
    if (island.pair_gbyte_s) text += fmt::format("  {:.4g} GB/s a pair", *island.pair_gbyte_s);
    if (!island.uniform) text += "  not uniform";
    return text;
  }

  void append_islands() {
    text_ += paint(colour_, Ink::bold, "islands") + '\n';
    const std::size_t shown = std::min(all_.islands.size(), most_islands);
    for (std::size_t i = 0; i < shown; ++i)
      text_ += fmt::format("  {}: {}\n", i, island_line(all_.islands[i]));
    // For islands that are not listed one by one, maps a size to the number of islands of this
    // size.
    std::map<std::size_t, std::size_t, std::greater<>> rest;
    for (std::size_t i = shown; i < all_.islands.size(); ++i) ++rest[all_.islands[i].gpus.size()];
    for (const auto& [size, number] : rest)
      text_ += fmt::format("  and {} more of {}\n", number, plural(size, "GPU"));
  }

  // Describes devices: "mlx5_0 of 3 hosts", or a list if the devices have different names on
  // different hosts.
  std::string devices(const std::vector<std::string>& ids) const {
    std::set<std::string> parts, hosts;
    for (const std::string& id : ids) {
      parts.insert(last_part(id));
      hosts.insert(id.substr(0, id.rfind('/')));
    }
    if (hosts.size() * parts.size() == ids.size()) {
      std::vector<std::string> words(parts.begin(), parts.end());
      std::ranges::sort(words, natural_less);
      return enumerate(words, 8) + (hosts.size() == 1 ? " of " + names_.host(*hosts.begin())
                                                      : fmt::format(" of {} hosts", hosts.size()));
    }
    std::vector<std::string> words;
    for (const std::string& id : ids) words.push_back(names_.device(id));
    return enumerate(words, 6);
  }

  std::string rail_line(const Rail& rail) const {
    std::string text = devices(rail.nics);
    if (!rail.gpus.empty()) text += "  for " + devices(rail.gpus);
    return text;
  }

  void append_rails() {
    // Rails connect hosts. The rails of a single host are printed only if they come from a fabric
    // file.
    const bool assumed = std::ranges::any_of(
        all_.rails, [](const Rail& rail) { return rail.evidence == "assumed"; });
    if (all_.rails.empty() || (topology_.hosts.size() == 1 && assumed)) return;
    text_ += paint(colour_, Ink::bold, "rails");
    text_ +=
        assumed
            ? " (assumed from the positions of the NICs; --fabric FILE shows the leaf switches)\n"
            : " (from the fabric)\n";
    const std::size_t shown = std::min(all_.rails.size(), most_rails);
    for (std::size_t i = 0; i < shown; ++i)
      text_ += fmt::format("  {}: {}\n", all_.rails[i].index, rail_line(all_.rails[i]));
    if (all_.rails.size() > shown)
      text_ += fmt::format("  and {} more\n", all_.rails.size() - shown);
  }

  void append_findings() {
    std::map<Severity, std::size_t, std::greater<>> counts;
    for (const Finding& finding : all_.diagnosis.findings) ++counts[finding.severity];
    if (counts.empty()) return;
    std::vector<std::string> parts;
    for (const auto& [severity, number] : counts)
      parts.push_back(paint(colour_, ink_of(severity),
                            severity == Severity::info ? fmt::format("{} info", number)
                                                       : plural(number, name(severity))));
    text_ +=
        fmt::format("findings: {} (atoll-topo --doctor explains them)\n", fmt::join(parts, ", "));
  }

  const Inspection& all_;
  const Topology& topology_;
  Colour colour_;
  DisplayNames names_;
  PathLevels levels_;
  std::vector<std::optional<double>> pcie_limits_;
  std::vector<CoresAffinity> all_cores_;
  std::unordered_map<std::string_view, std::vector<const CoresAffinity*>> cores_;
  std::unordered_map<std::string_view, const Affinity*> affinity_;
  std::unordered_map<std::string_view, std::vector<const TopologyGpu*>> gpus_;
  std::unordered_map<std::string_view, std::vector<const TopologyNic*>> nics_;
  std::string text_;
};

}  // namespace

std::string to_tree(const Inspection& inspection, Colour colour) {
  return Tree(inspection, colour).text();
}

}  // namespace atoll_v1::atoll

// Chooses the NICs that belong to each GPU, and those of ranks without a GPU.
//
// Idea: a GPU sends through the nearest NIC that can reach the other hosts. A NIC is *eligible*
// when it is not virtual, is not known to be down, and belongs to the host's *fabric*: the kind of
// NIC with the most bandwidth (but RDMA always precedes sockets). Steps:
//   1. nearest: the NICs at the least distance, even if they are down;
//   2. candidates: the nearest of the eligible NICs; among these, the fastest;
//   3. GPUs of a host with the same candidates divide them: each GPU gets a block of NICs when
//      there are at least as many NICs as GPUs; otherwise several GPUs share one NIC;
//   4. a GPU whose nearest NICs are down uses the candidate with the fewest users, so that it
//      disturbs other GPUs least.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "affinity.hpp"
#include "atoll/topology.hpp"
#include "facts.hpp"
#include "parse_number.hpp"
#include "path_level.hpp"
#include "pcie_rate.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using Nics = std::vector<const TopologyNic*>;

bool is_rdma(const TopologyNic& nic) {
  if (!nic.layer.empty() && nic.layer != "ethernet") return true;
  if (get_fact(nic.facts, fact::rdma) == "yes") return true;
  return !has_interface_name(nic);
}

std::vector<std::string> ids_of(const Nics& nics) {
  std::vector<std::string> ids;
  for (const TopologyNic* nic : nics) ids.push_back(nic->id);
  return ids;
}

std::string names_of(const Nics& nics) {
  std::vector<std::string> names;
  for (const TopologyNic* nic : nics) names.push_back(nic->name);
  return enumerate(names);
}

Nics sorted_by_name(Nics nics) {
  std::ranges::sort(nics, [](const TopologyNic* a, const TopologyNic* b) {
    return natural_less(a->name, b->name);
  });
  return nics;
}

int layer_rank(const TopologyNic& nic) {
  if (!is_rdma(nic)) return 0;
  return nic.layer == "ethernet" ? 1 : nic.layer.empty() ? 2 : 3;
}

}  // namespace

bool has_interface_name(const TopologyNic& nic) {
  return starts_with_any(nic.name, {"eth", "en", "bond", "ib", "wl", "hsn"});
}

bool may_be_active(const TopologyNic& nic) {
  return !nic.is_virtual && (nic.state.empty() || nic.state == "active");
}

// Returns the NICs of the fabric that joins the hosts. When all rates are known, the fabric with
// the most bandwidth wins, so that one slow InfiniBand port for storage does not win over eight
// RoCE ports. Otherwise InfiniBand and similar fabrics precede Ethernet.
std::vector<const TopologyNic*> eligible_nics(const std::vector<const TopologyNic*>& nics) {
  struct Fabric {
    double rate = 0;
    Nics members = {};
  };
  std::map<std::pair<int, std::string>, Fabric> fabrics;  // keys: preference and name of the layer
  bool all_known = true;
  for (const TopologyNic* nic : nics) {
    if (!may_be_active(*nic)) continue;
    Fabric& fabric = fabrics[{layer_rank(*nic), nic->layer}];
    fabric.rate += nic->rate_gbit_s.value_or(0);
    fabric.members.push_back(nic);
    all_known = all_known && nic->rate_gbit_s.has_value();
  }
  const auto best = std::ranges::max_element(fabrics, {}, [&](const auto& entry) {
    const auto& [layer, fabric] = entry;
    const bool is_rdma_fabric = layer.first > 0;
    return std::tuple{is_rdma_fabric, all_known ? fabric.rate : 0, layer.first, fabric.rate,
                      fabric.members.size()};
  });
  return best == fabrics.end() ? Nics() : best->second.members;
}

namespace {

struct Nearest {
  Nics nics;
  std::optional<PathLevel> level;
};

// Finds the NICs at the least distance from a GPU. Ignores NICs without a known path, so the result
// may be empty.
Nearest nearest_of(const PathLevels& levels, const TopologyGpu& gpu, const Nics& nics) {
  Nearest nearest;
  for (const TopologyNic* nic : nics) {
    const auto level = levels.between(location_of(gpu), location_of(*nic));
    if (!level || (nearest.level && *level > *nearest.level)) continue;
    if (!nearest.level || *level < *nearest.level) nearest = {{}, level};
    nearest.nics.push_back(nic);
  }
  return nearest;
}

Nics fastest_of(const Nics& nics) {
  double most = 0;
  for (const TopologyNic* nic : nics) most = std::max(most, nic->rate_gbit_s.value_or(0));
  Nics fastest;
  for (const TopologyNic* nic : nics)
    if (!nic->rate_gbit_s || *nic->rate_gbit_s >= most) fastest.push_back(nic);
  return fastest;
}

// `users` GPUs share `nics`. Returns the NICs of the GPU with this number, which is counted from 0.
Nics share_of(const Nics& nics, std::size_t number, std::size_t users) {
  if (nics.size() < users) return {nics[number * nics.size() / users]};
  const std::size_t each = nics.size() / users;
  const auto begin = nics.begin() + static_cast<std::ptrdiff_t>(number * each);
  return {begin, begin + static_cast<std::ptrdiff_t>(each)};
}

struct Choice {
  std::size_t gpu = 0;  // index into Topology::gpus
  Nearest nearest;
  Nearest candidates;
};

// True if the GPU uses NICs that are farther away because one of its nearest NICs is down.
bool is_displaced(const Choice& choice) {
  return choice.candidates.level != choice.nearest.level &&
         std::ranges::any_of(choice.nearest.nics,
                             [](const TopologyNic* nic) { return !may_be_active(*nic); });
}

// Numbers of GPUs that share a set of NICs, by the distance between GPU and NICs.
using Users = std::map<std::optional<PathLevel>, std::size_t>;

std::size_t number_of(const Users& users) {
  std::size_t sum = 0;
  for (const auto& [level, count] : users) sum += count;
  return sum;
}

std::string spread_text(const Choice& choice, const Nics& use, const Users& users) {
  const Nics& all = choice.candidates.nics;
  const std::size_t number = number_of(users);
  if (number < 2 || all.size() < 2) return "";
  std::string text;
  if (users.size() == 1) {
    text = fmt::format("; {} are equally near to {} and spread over them", plural(number, "GPU"),
                       names_of(all));
  } else {
    std::vector<std::string> levels;
    for (const auto& [level, count] : users)
      levels.push_back(fmt::format("{} at {}", count, level ? name(*level) : "unknown distance"));
    text = fmt::format("; {} have no nearer NICs than {} and are spread over them ({})",
                       plural(number, "GPU"), names_of(all), enumerate(levels));
  }
  const std::size_t left = all.size() < number ? 0 : all.size() - number * use.size();
  if (left > 0) text += fmt::format(", {} left over", plural(left, "NIC"));
  return text;
}

// Returns why a NIC that may be up is not used, as far as the sources show it.
std::string_view why_other(const TopologyNic& nic, const TopologyNic& chosen) {
  if (is_rdma(chosen) && !is_rdma(nic)) return "a plain network interface";
  if (nic.layer == chosen.layer) return "slower";
  if (nic.layer.empty() || chosen.layer.empty()) return "of unknown fabric";
  return "of another fabric";
}

// Explains why a GPU does not use NICs that are as near as its own or nearer.
std::string passed_over(const Choice& choice) {
  std::map<std::string_view, Nics> by_reason;
  const Nics& chosen = choice.candidates.nics;
  const std::unordered_set<const TopologyNic*> is_chosen(chosen.begin(), chosen.end());
  for (const TopologyNic* nic : choice.nearest.nics) {
    if (chosen.empty() || is_chosen.contains(nic)) continue;
    by_reason[may_be_active(*nic) ? why_other(*nic, *chosen.front()) : nic->state].push_back(nic);
  }
  std::string text;
  for (const auto& [reason, nics] : by_reason)
    text += fmt::format("; {} {} as near as a chosen NIC or nearer, but {}", names_of(nics),
                        nics.size() == 1 ? "is" : "are", reason);
  return text;
}

std::string explain(const Choice& choice, const Nics& use, const Users& users) {
  if (use.empty()) return "no active NIC that joins hosts";
  std::string text = names_of(use);
  if (!choice.candidates.level)
    text += ": no source provides the path to any NIC";
  else
    text += fmt::format(" {} nearest ({})", use.size() == 1 ? "is" : "are",
                        name(*choice.candidates.level));
  return text + spread_text(choice, use, users) + passed_over(choice);
}

// Chooses the NICs of all GPUs of one host.
void choose(const PathLevels& levels, const Topology& topology,
            const std::vector<std::size_t>& gpus, Nics nics, std::vector<Affinity>& result) {
  nics = sorted_by_name(std::move(nics));
  std::erase_if(nics, [](const TopologyNic* nic) { return nic->is_virtual; });
  const Nics eligible = eligible_nics(nics);
  std::vector<Choice> choices;
  std::map<Nics, Users> users;
  for (const std::size_t gpu : gpus) {
    Choice choice{gpu, nearest_of(levels, topology.gpus[gpu], nics),
                  nearest_of(levels, topology.gpus[gpu], eligible)};
    if (!choice.candidates.level) choice.candidates.nics = eligible;
    choice.candidates.nics = fastest_of(choice.candidates.nics);
    if (!is_displaced(choice)) ++users[choice.candidates.nics][choice.candidates.level];
    choices.push_back(std::move(choice));
  }
  std::map<Nics, std::size_t> placed;
  std::map<const TopologyNic*, std::size_t> load;
  for (const bool displaced : {false, true})
    for (const Choice& choice : choices) {
      if (is_displaced(choice) != displaced) continue;
      const Nics& candidates = choice.candidates.nics;
      Nics use;
      if (displaced && !candidates.empty())
        use = {*std::ranges::min_element(candidates, {}, [&](auto* nic) { return load[nic]; })};
      else if (!candidates.empty())
        use = share_of(candidates, placed[candidates]++, number_of(users[candidates]));
      for (const TopologyNic* nic : use) ++load[nic];
      result[choice.gpu] = {.gpu = topology.gpus[choice.gpu].id,
                            .nearest = ids_of(choice.nearest.nics),
                            .use = ids_of(use),
                            .level = choice.nearest.level,
                            .why = explain(choice, use, displaced ? Users() : users[candidates])};
    }
}

Nics on_node(const Nics& nics, int numa) {
  Nics near;
  std::ranges::copy_if(nics, std::back_inserter(near),
                       [&](const TopologyNic* nic) { return numa >= 0 && nic->numa == numa; });
  return near;
}

// Returns why a rank on the cores of a NUMA node uses NICs of other nodes. If the NUMA node or the
// state of a NIC is unknown, the text only says that no NIC of this node is known to be active.
std::string why_elsewhere(const Nics& nics, int numa) {
  if (numa < 0) return "the rank is not bound to the cores of one NUMA node";
  const auto any = [](const Nics& some, auto holds) {
    return std::ranges::any_of(
        some, [&](const TopologyNic* nic) { return may_be_active(*nic) && holds(*nic); });
  };
  if (any(on_node(nics, numa), [](const TopologyNic&) { return true; }))
    return fmt::format("the NICs on NUMA node {}, where the rank runs, are of another fabric",
                       numa);
  const bool is_unsure =
      any(nics, [](const TopologyNic& nic) { return nic.numa < 0 || nic.state.empty(); });
  return fmt::format("no active NIC is {}on NUMA node {}, where the rank runs",
                     is_unsure ? "known to be " : "", numa);
}

// Uses the current link speed: unlike GPUs, idle NICs keep their link at full speed.
std::optional<double> nic_pcie_gbyte_s(const Facts& facts) {
  const auto rate = number_fact(facts, fact::pci_gt_s), width = number_fact(facts, fact::pci_width);
  if (!rate || !width || *rate <= 0 || *width <= 0) return number_fact(facts, fact::pci_gbyte_s);
  return pcie_gbyte_s(*rate, *width);
}

// Bandwidth of an adapter over all its ports, by PCI device id, from NVIDIA's data sheets.
std::optional<double> adapter_gbit_s(const Facts& facts) {
  struct Entry {
    std::string_view device;
    double gbit_s;
  };
  constexpr std::array entries{
      Entry{"15b3:1013", 100}, Entry{"15b3:1017", 100}, Entry{"15b3:1019", 200},
      Entry{"15b3:101b", 200}, Entry{"15b3:101d", 200}, Entry{"15b3:1021", 400},
      Entry{"15b3:1023", 800}, Entry{"15b3:a2d6", 200}, Entry{"15b3:a2dc", 400},
  };
  const auto found = std::ranges::find(entries, get_fact(facts, fact::pci_device), &Entry::device);
  return found == entries.end() ? std::nullopt : std::optional(found->gbit_s);
}

// Removes the function number from a bus id: "00000000:1b:00.1" -> "00000000:1b:00". All functions
// of a PCI device share its PCIe link.
std::string_view slot_of(std::string_view busid) { return busid.substr(0, busid.rfind('.')); }

// Counts the NICs that may be active and share a part of their host: an adapter or a PCIe slot.
class Sharers {
 public:
  using PartOf = std::string_view (*)(const TopologyNic& nic);  // "" if the part is unknown

  Sharers(const Topology& topology, PartOf part_of) : part_of_(part_of) {
    for (const TopologyNic& nic : topology.nics)
      if (may_be_active(nic) && !part_of(nic).empty()) ++counts_[{nic.host, part_of(nic)}];
  }
  double count(const TopologyNic& nic) const {
    const auto found = counts_.find({nic.host, part_of_(nic)});
    return found == counts_.end() ? 1 : found->second;
  }

 private:
  PartOf part_of_;
  std::map<std::pair<std::string_view, std::string_view>, double> counts_;
};

}  // namespace

std::vector<Affinity> find_affinity(const Topology& topology) {
  std::unordered_map<std::string_view, Nics> nics;
  std::unordered_map<std::string_view, std::vector<std::size_t>> gpus;
  for (const TopologyNic& nic : topology.nics) nics[nic.host].push_back(&nic);
  for (std::size_t gpu = 0; gpu < topology.gpus.size(); ++gpu)
    gpus[topology.gpus[gpu].host].push_back(gpu);
  const PathLevels levels(topology);
  std::vector<Affinity> result(topology.gpus.size());
  for (const auto& [host, members] : gpus) choose(levels, topology, members, nics[host], result);
  return result;
}

Affinity find_cpu_affinity(const Topology& topology, std::string_view host, int numa) {
  Nics nics;
  for (const TopologyNic& nic : topology.nics)
    if (nic.host == host && !nic.is_virtual) nics.push_back(&nic);
  nics = sorted_by_name(std::move(nics));
  const Nics all = fastest_of(eligible_nics(nics));
  const Nics near = fastest_of(on_node(eligible_nics(nics), numa));
  Affinity affinity{.gpu = "",
                    .nearest = ids_of(on_node(nics, numa)),
                    .use = ids_of(near.empty() ? all : near),
                    .level = {},
                    .why = ""};
  if (!affinity.nearest.empty()) affinity.level = PathLevel::node;
  if (all.empty()) {
    affinity.why = "no active NIC that joins hosts";
  } else if (!near.empty()) {
    affinity.why = fmt::format("{} {} on NUMA node {}, where the rank runs", names_of(near),
                               near.size() == 1 ? "is" : "are", numa);
  } else {
    affinity.why = fmt::format("{}: {}", names_of(all), why_elsewhere(nics, numa));
  }
  return affinity;
}

std::vector<std::optional<double>> pcie_limits_gbyte_s(const Topology& topology) {
  const Sharers sharers(topology, [](const TopologyNic& nic) { return slot_of(nic.busid); });
  std::unordered_map<std::string_view, bool> emulated;
  for (const TopologyHost& host : topology.hosts)
    emulated[host.id] = get_fact(host.facts, fact::virtual_machine) == "yes";
  std::vector<std::optional<double>> limits;
  for (const TopologyNic& nic : topology.nics) {
    std::optional<double> limit = nic_pcie_gbyte_s(nic.facts);
    if (limit) *limit /= sharers.count(nic);
    limits.push_back(emulated[nic.host] ? std::nullopt : limit);
  }
  return limits;
}

std::vector<std::optional<double>> usable_gbyte_s(const Topology& topology) {
  const Sharers sharers(topology,
                        [](const TopologyNic& nic) { return std::string_view(nic.adapter); });
  std::vector<std::optional<double>> usable;
  for (const std::optional<double>& pcie : pcie_limits_gbyte_s(topology)) {
    const TopologyNic& nic = topology.nics[usable.size()];
    std::optional<double> least;
    const auto limit = [&](double gbyte_s) { least = std::min(least.value_or(gbyte_s), gbyte_s); };
    if (nic.rate_gbit_s) limit(*nic.rate_gbit_s / 8);
    if (const auto adapter = adapter_gbit_s(nic.facts)) limit(*adapter / 8 / sharers.count(nic));
    if (least && pcie) limit(*pcie);
    usable.push_back(least);
  }
  return usable;
}

}  // namespace atoll_v1::atoll

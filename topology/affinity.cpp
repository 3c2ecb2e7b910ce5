// Which NICs belong to which GPU.
//
// Idea: a GPU sends through the nearest NIC that can reach the other hosts. Vocabulary: a NIC is
// *eligible* when it is not virtual, not known to be other than active, and of the host's *fabric*:
// the kind of NIC (RDMA before sockets, then the most bandwidth) that carries most. Steps:
//   1. nearest: the NICs at the least distance, whatever their state;
//   2. candidates: the eligible NICs at their least distance, the fastest of them;
//   3. GPUs of a host with the same candidates share them out: in blocks when there are at least as
//      many NICs as GPUs, else several GPUs on one NIC.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>
#include <unordered_map>

#include "atoll/topology.hpp"
#include "facts.hpp"
#include "path_level.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using Nics = std::vector<const TopologyNic*>;

bool is_rdma(const TopologyNic& nic) {
  if (!nic.layer.empty() && nic.layer != "ethernet") return true;
  constexpr std::array sockets{"eth", "en", "bond", "ib", "wl", "hsn"};
  return std::ranges::none_of(sockets,
                              [&](const char* prefix) { return nic.name.starts_with(prefix); });
}

bool may_be_active(const TopologyNic& nic) {
  return !nic.is_virtual && (nic.state.empty() || nic.state == "active");
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

// Rates count more than numbers; where no rate is known, numbers decide.
Nics eligible_of(const Nics& nics) {
  std::map<std::pair<bool, std::string>, std::tuple<double, std::size_t, Nics>> fabrics;
  for (const TopologyNic* nic : nics) {
    if (!may_be_active(*nic)) continue;
    auto& [rate, count, members] = fabrics[{is_rdma(*nic), nic->layer}];
    rate += nic->rate_gbit_s.value_or(0);
    ++count;
    members.push_back(nic);
  }
  const auto best = std::ranges::max_element(fabrics, {}, [](const auto& fabric) {
    const auto& [rate, count, members] = fabric.second;
    return std::tuple{fabric.first.first, rate, count};
  });
  return best == fabrics.end() ? Nics() : std::get<Nics>(best->second);
}

struct Nearest {
  Nics nics;
  std::optional<PathLevel> level;
};

// NICs to which no source knows the way are nearest only where it knows none at all.
Nearest nearest_of(const PathLevels& levels, const TopologyGpu& gpu, const Nics& nics) {
  Nearest nearest;
  for (const TopologyNic* nic : nics) {
    const auto level = levels.between(place_of(gpu), place_of(*nic));
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

// The GPU with number `place` of `users` that share `nics`.
Nics share_of(const Nics& nics, std::size_t place, std::size_t users) {
  if (nics.size() < users) return {nics[place * nics.size() / users]};
  const std::size_t each = nics.size() / users;
  const auto begin = nics.begin() + static_cast<std::ptrdiff_t>(place * each);
  return {begin, begin + static_cast<std::ptrdiff_t>(each)};
}

struct Choice {
  std::size_t gpu = 0;  // number in the topology
  Nearest nearest;
  Nearest candidates;
};

std::string spread_text(const Choice& choice, const Nics& use, std::size_t users) {
  const Nics& all = choice.candidates.nics;
  if (users < 2 || all.size() < 2) return "";
  std::string text = fmt::format("; {} are equally near to {} and spread over them",
                                 plural(users, "GPU"), names_of(all));
  const std::size_t left = all.size() < users ? 0 : all.size() - users * use.size();
  if (left > 0) text += fmt::format(", {} left over", plural(left, "NIC"));
  return text;
}

// Why nearer NICs are passed over.
std::string passed_over(const Choice& choice) {
  Nics down, other;
  for (const TopologyNic* nic : choice.nearest.nics) {
    if (std::ranges::find(choice.candidates.nics, nic) != choice.candidates.nics.end()) continue;
    (may_be_active(*nic) ? other : down).push_back(nic);
  }
  std::string text;
  if (!down.empty())
    text += fmt::format("; {} {} as near or nearer, but {}", names_of(down),
                        down.size() == 1 ? "is" : "are",
                        down.front()->state.empty() ? "not active" : down.front()->state);
  if (!other.empty())
    text += fmt::format("; {} {} as near or nearer, but slower or of another fabric",
                        names_of(other), other.size() == 1 ? "is" : "are");
  return text;
}

std::string explain(const Choice& choice, const Nics& use, std::size_t users) {
  if (use.empty()) return "no active NIC that joins hosts";
  std::string text = names_of(use);
  if (!choice.candidates.level)
    text += ": no source tells the way to any NIC";
  else
    text += fmt::format(" {} nearest ({})", use.size() == 1 ? "is" : "are",
                        name(*choice.candidates.level));
  return text + spread_text(choice, use, users) + passed_over(choice);
}

// The GPUs of one host.
void choose(const PathLevels& levels, const Topology& topology,
            const std::vector<std::size_t>& gpus, Nics nics, std::vector<Affinity>& result) {
  std::ranges::sort(nics, [](const TopologyNic* a, const TopologyNic* b) {
    return natural_less(a->name, b->name);
  });
  std::erase_if(nics, [](const TopologyNic* nic) { return nic->is_virtual; });
  const Nics eligible = eligible_of(nics);
  std::vector<Choice> choices;
  std::map<Nics, std::size_t> users;
  for (const std::size_t gpu : gpus) {
    Choice choice{gpu, nearest_of(levels, topology.gpus[gpu], nics),
                  nearest_of(levels, topology.gpus[gpu], eligible)};
    if (!choice.candidates.level) choice.candidates.nics = eligible;
    choice.candidates.nics = fastest_of(choice.candidates.nics);
    ++users[choice.candidates.nics];
    choices.push_back(std::move(choice));
  }
  std::map<Nics, std::size_t> placed;
  for (const Choice& choice : choices) {
    const Nics& candidates = choice.candidates.nics;
    const std::size_t sharing = users[candidates];
    const Nics use =
        candidates.empty() ? Nics() : share_of(candidates, placed[candidates]++, sharing);
    result[choice.gpu] = {.gpu = topology.gpus[choice.gpu].id,
                          .nearest = ids_of(choice.nearest.nics),
                          .use = ids_of(use),
                          .level = choice.nearest.level,
                          .why = explain(choice, use, sharing)};
  }
}

// GB/s of one PCIe link: 8b/10b below 8 GT/s, 128b/130b up to 32, FLIT mode (about 94.6 %, the
// PCI-SIG's figure for 64 GT/s: 121 GB/s at x16) beyond.
std::optional<double> pcie_gbyte_s(const Facts& facts) {
  const auto rate = number_fact(facts, fact::pci_gt_s), width = number_fact(facts, fact::pci_width);
  if (!rate || !width || *rate <= 0 || *width <= 0) return number_fact(facts, fact::pci_gbyte_s);
  const double payload = *rate < 8 ? 0.8 : *rate < 64 ? 128.0 / 130 : 0.946;
  return *rate * *width * payload / 8;
}

// What one adapter carries over all its ports, by PCI device: NVIDIA's data sheets.
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

// "00000000:1b:00.1" -> "00000000:1b:00": functions of one device share its PCIe link.
std::string_view slot_of(std::string_view busid) { return busid.substr(0, busid.rfind('.')); }

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

std::vector<std::optional<double>> usable_gbyte_s(const Topology& topology) {
  using Key = std::pair<std::string_view, std::string_view>;  // host, adapter or slot
  std::map<Key, double> on_adapter, on_slot;
  for (const TopologyNic& nic : topology.nics) {
    if (!may_be_active(nic)) continue;
    if (!nic.adapter.empty()) ++on_adapter[{nic.host, nic.adapter}];
    if (!nic.busid.empty()) ++on_slot[{nic.host, slot_of(nic.busid)}];
  }
  std::unordered_map<std::string_view, bool> emulated;
  for (const TopologyHost& host : topology.hosts)
    emulated[host.id] = get_fact(host.facts, fact::virtual_machine) == "yes";
  std::vector<std::optional<double>> usable;
  for (const TopologyNic& nic : topology.nics) {
    std::optional<double> least;
    const auto limit = [&](double gbyte_s) { least = std::min(least.value_or(gbyte_s), gbyte_s); };
    const auto share = [&](const std::map<Key, double>& users, std::string_view part) {
      const auto found = users.find({nic.host, part});
      return found == users.end() ? 1.0 : found->second;
    };
    if (nic.rate_gbit_s) limit(*nic.rate_gbit_s / 8);
    if (const auto adapter = adapter_gbit_s(nic.facts))
      limit(*adapter / 8 / share(on_adapter, nic.adapter));
    // A virtual machine shows emulated links that say nothing of the real ones.
    if (const auto pcie = pcie_gbyte_s(nic.facts); pcie && !emulated[nic.host])
      limit(*pcie / share(on_slot, slot_of(nic.busid)));
    usable.push_back(least);
  }
  return usable;
}

std::optional<double> usable_gbyte_s(const Topology& topology, const TopologyNic& nic) {
  Topology host;
  for (const TopologyHost& one : topology.hosts)
    if (one.id == nic.host) host.hosts.push_back(one);
  std::size_t number = 0;
  for (const TopologyNic& other : topology.nics) {
    if (other.host != nic.host) continue;
    if (&other == &nic || other.id == nic.id) number = host.nics.size();
    host.nics.push_back(other);
  }
  if (host.nics.empty()) host.nics.push_back(nic);
  return usable_gbyte_s(host)[number];
}

}  // namespace atoll_v1::atoll

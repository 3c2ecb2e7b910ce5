// Arranges the boxes of one host in a picture: islands, GPUs, NICs and their frames.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "facts.hpp"
#include "inspect/pictures/svg_scene.hpp"

namespace atoll_v1::atoll::drawing {
namespace {

constexpr std::size_t most_in_stack = 6;
// On a host without GPUs, each NIC is drawn on its own if there are at most this number of NICs.
constexpr std::size_t most_single_nics = 8;

std::string_view last_part(std::string_view id) { return id.substr(id.rfind('/') + 1); }

// Removes the vendor from a GPU model: "H100 80GB HBM3" for "NVIDIA H100 80GB HBM3".
std::string_view short_model(std::string_view model) {
  for (const std::string_view maker : {"NVIDIA ", "AMD Instinct ", "Tesla "})
    if (model.starts_with(maker)) model.remove_prefix(maker.size());
  return model;
}

std::string_view short_layer(std::string_view layer) {
  if (layer == "infiniband") return "IB";
  if (layer == "ethernet") return "Eth";
  if (layer == "efa") return "EFA";
  if (layer == "slingshot") return "SS";
  if (layer == "omni-path") return "OPA";
  return layer;
}

GpuBox make_gpu(const Parts& parts, const TopologyGpu& gpu) {
  GpuBox box;
  box.id = gpu.id;
  const std::string_view tail = last_part(gpu.id);
  box.lines.push_back(tail.starts_with("gpu") ? fmt::format("GPU {}", tail.substr(3))
                                              : std::string(tail));
  if (std::string ranks = parts.ranks(gpu.id); !ranks.empty())
    box.lines.push_back(std::move(ranks));
  box.tooltip = fmt::format("{} {} {}", gpu.id, gpu.model, gpu.busid);
  box.mark = parts.mark(gpu.id);
  box.package = gpu.package;
  return box;
}

NicBox make_nic(const Parts& parts, std::size_t position) {
  const TopologyNic& nic = parts.topology.nics[position];
  NicBox box;
  box.id = nic.id;
  box.name = nic.name;
  box.is_active = nic.state.empty() || nic.state == "active";
  const std::string rate = nic.rate_gbit_s ? fmt::format("{:g}G", *nic.rate_gbit_s) : "";
  box.note = fmt::format("{}{}{}", rate, rate.empty() ? "" : " ",
                         box.is_active ? short_layer(nic.layer) : std::string_view(nic.state));
  if (const auto pcie = parts.pcie_limits[position])
    box.note += fmt::format("{}PCIe {:.0f}G", box.note.empty() ? "" : ", ", *pcie);
  box.tooltip = fmt::format("{} {} {}", nic.id, nic.layer, nic.busid);
  box.mark = parts.mark(nic.id);
  return box;
}

void add_links(const Parts& parts, const HostParts& host,
               const std::map<std::size_t, std::size_t>& places, HostBox& box) {
  std::map<std::pair<std::size_t, std::size_t>, Arc> arcs;
  std::map<std::size_t, int> stubs;
  const auto place = [&](const std::string& id) -> std::optional<std::size_t> {
    const auto gpu = parts.gpu(id);
    const auto found = gpu ? places.find(*gpu) : places.end();
    return found == places.end() ? std::nullopt : std::optional(found->second);
  };
  for (const TopologyLink* link : host.links) {
    const auto a = place(link->a), b = place(link->b);
    if (a && b && a != b) {
      Arc& arc = arcs[std::minmax(*a, *b)];
      arc.count += link->count;
      arc.mark = std::max({arc.mark, parts.mark(fmt::format("{} - {}", link->a, link->b)),
                           parts.mark(fmt::format("{} - {}", link->b, link->a))});
    } else if (a && !parts.gpu(link->b)) {
      stubs[*a] += link->count;
    } else if (b && !parts.gpu(link->a)) {
      stubs[*b] += link->count;
    }
  }
  std::vector<IslandBox*> island_of(box.gpus.size());
  for (IslandBox& island : box.islands)
    for (const std::size_t gpu : island.gpus) island_of[gpu] = &island;
  for (auto& [pair, arc] : arcs) {
    std::tie(arc.a, arc.b) = pair;
    island_of[arc.a]->arcs.push_back(arc);
  }
  for (const auto& [gpu, count] : stubs) island_of[gpu]->stubs.push_back({gpu, count});
}

// Returns the box for the GPUs of a host that have no links; all these GPUs share one box.
IslandBox make_lone(std::size_t gpus, std::size_t of) {
  IslandBox box;
  box.state = IslandState::none;
  if (gpus == of)
    box.title = {plural(gpus, "GPU"), "without fast links"};
  else
    box.title = {gpus == 1 ? "alone:" : fmt::format("{} alone:", gpus), "no links"};
  return box;
}

std::string models_of(const Topology& topology, const std::vector<std::size_t>& gpus) {
  const std::string& model = topology.gpus[gpus.front()].model;
  for (const std::size_t gpu : gpus)
    if (topology.gpus[gpu].model != model) return "different models";
  return std::string(short_model(model));
}

// Adds the islands to `box`, and the GPUs in the order of the islands. Returns for each GPU, given
// by its position in the topology, the position in `box`.
std::map<std::size_t, std::size_t> add_islands(const Parts& parts, const HostParts& host,
                                               HostBox& box) {
  const Topology& topology = parts.topology;
  const std::vector<Island>& islands = parts.inspection.islands;
  std::map<std::size_t, std::vector<std::size_t>> members;  // GPUs on this host, by island
  std::vector<std::size_t> order, lone;
  for (const std::size_t gpu : host.gpus) {
    const auto island = parts.island(topology.gpus[gpu].id);
    if (!island || islands[*island].state == IslandState::none) {
      lone.push_back(gpu);
      continue;
    }
    if (!members.contains(*island)) order.push_back(*island);
    members[*island].push_back(gpu);
  }
  std::map<std::size_t, std::size_t> places;
  const auto add = [&](IslandBox island, const std::vector<std::size_t>& gpus) {
    island.detail = models_of(topology, gpus);
    for (const std::size_t gpu : gpus) {
      places[gpu] = box.gpus.size();
      island.gpus.push_back(box.gpus.size());
      box.gpus.push_back(make_gpu(parts, topology.gpus[gpu]));
      island.mark = std::max(island.mark, box.gpus.back().mark);
    }
    box.islands.push_back(std::move(island));
  };
  for (const std::size_t island : order) add(make_island(parts, island), members[island]);
  if (!lone.empty()) add(make_lone(lone.size(), host.gpus.size()), lone);
  return places;
}

// The GPUs of the host that send through a NIC, and the GPUs for which the NIC is the nearest one.
using Gpus = std::vector<std::size_t>;
struct Use {
  Gpus users, near;
};

std::map<std::size_t, Use> uses_of(const Parts& parts, const HostBox& box) {
  std::map<std::size_t, Use> uses;
  for (std::size_t gpu = 0; gpu < box.gpus.size(); ++gpu) {
    const Affinity* affinity = parts.affinity(box.gpus[gpu].id);
    if (affinity == nullptr) continue;
    for (const std::string& id : affinity->use)
      if (const auto nic = parts.nic(id)) uses[*nic].users.push_back(gpu);
    for (const std::string& id : affinity->nearest)
      if (const auto nic = parts.nic(id)) uses[*nic].near.push_back(gpu);
  }
  return uses;
}

// Limits the number of NIC boxes in a stack. NICs with findings are moved to the front, so that
// they are always drawn.
void shorten(NicStack& stack) {
  if (stack.nics.size() <= most_in_stack) return;
  std::ranges::stable_sort(stack.nics, std::ranges::greater(), &NicBox::mark);
  stack.more = fmt::format("and {} more", stack.nics.size() - most_in_stack + 1);
  stack.nics.resize(most_in_stack - 1);
}

void add_stacks(const Parts& parts, const HostParts& host, HostBox& box) {
  const Topology& topology = parts.topology;
  const std::map<std::size_t, Use> uses = uses_of(parts, box);
  // Position of the NIC stack for each pair (GPUs that use its NICs, GPUs nearest to its NICs).
  std::map<std::pair<Gpus, Gpus>, std::size_t> stack_of;
  NicStack others;
  for (const std::size_t position : host.nics) {
    if (topology.nics[position].is_virtual) continue;
    const auto found = uses.find(position);
    Use use = found == uses.end() ? Use() : found->second;
    NicBox nic_box = make_nic(parts, position);
    const bool is_problem = !nic_box.is_active || nic_box.mark != Severity::info;
    if (!use.users.empty() || !is_problem) use.near.clear();
    const bool is_single = box.gpus.empty() && host.nics.size() <= most_single_nics;
    if (use.users.empty() && use.near.empty() && !is_single) {
      others.nics.push_back(std::move(nic_box));
      continue;
    }
    const auto [at, is_new] = stack_of.try_emplace({use.users, use.near}, box.stacks.size());
    if (is_new || is_single) box.stacks.push_back({.users = use.users, .near = use.near});
    NicStack& stack = is_single ? box.stacks.back() : box.stacks[at->second];
    stack.nics.push_back(std::move(nic_box));
  }
  if (!others.nics.empty()) box.stacks.push_back(std::move(others));
  for (NicStack& stack : box.stacks) shorten(stack);
}

std::string host_detail(const TopologyHost& host) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (host.packages > 0) add(plural(static_cast<std::size_t>(host.packages), "package"));
  if (host.host_cores > 0) add(plural(static_cast<std::size_t>(host.host_cores), "core"));
  if (host.memory_bytes > 0) add(gib_text(static_cast<double>(host.memory_bytes)));
  return text;
}

// Returns one bar (box with a text) for each processor of a host without GPUs.
std::vector<Bar> make_packages(const TopologyHost& host) {
  constexpr std::size_t most = 16;
  std::vector<Bar> bars;
  const std::map<int, std::string_view> packages = packages_of(host);
  for (const auto& [number, package] : packages)
    if (bars.size() < most) bars.push_back({{}, fmt::format("package {}: {}", number, package)});
  if (packages.size() > most)
    bars.push_back({{}, fmt::format("and {}", plural(packages.size() - most, "more package"))});
  return bars;
}

std::string likeness_of(const HostBox& box) {
  std::string text = fmt::format("{};{};", box.detail, static_cast<int>(box.mark));
  for (const Bar& package : box.packages) text += package.text + ';';
  for (const GpuBox& gpu : box.gpus)
    text += fmt::format("{}/{}/{};", gpu.lines.front(), gpu.package, static_cast<int>(gpu.mark));
  for (const IslandBox& island : box.islands) {
    text += fmt::format("{}/{}:", fmt::join(island.title, " "), island.detail);
    for (const std::size_t gpu : island.gpus) text += fmt::format("{},", gpu);
    for (const Arc& arc : island.arcs)
      text += fmt::format("{}-{}x{}/{};", arc.a, arc.b, arc.count, static_cast<int>(arc.mark));
    for (const Stub& stub : island.stubs) text += fmt::format("{}x{};", stub.gpu, stub.count);
  }
  for (const NicStack& stack : box.stacks) {
    for (const NicBox& nic : stack.nics)
      text += fmt::format("{}/{}/{};", nic.name, nic.note, static_cast<int>(nic.mark));
    for (const std::size_t gpu : stack.users) text += fmt::format("{},", gpu);
    for (const std::size_t gpu : stack.near) text += fmt::format("({}),", gpu);
    text += stack.more;
  }
  return text;
}

}  // namespace

IslandBox make_island(const Parts& parts, std::size_t position) {
  const Island& island = parts.inspection.islands[position];
  IslandBox box;
  box.state = island.state;
  box.fabric = island.fabric;
  const std::string gpus = plural(island.gpus.size(), "GPU");
  if (island.state == IslandState::unknown) {
    box.title = {"links unknown:", gpus};
    return box;
  }
  box.title = {fmt::format("{} island:", fabric_name(island.fabric)), gpus};
  if (island.hosts.size() > 1) box.title.back() += fmt::format(" on {} hosts", island.hosts.size());
  const auto add = [&](std::string part) {
    box.title.back() += ',';
    box.title.push_back(std::move(part));
  };
  if (island.gpu_gbyte_s) add(fmt::format("{:.4g} GB/s a GPU", *island.gpu_gbyte_s));
  if (!island.uniform)
    add("pairs differ");
  else if (island.pair_gbyte_s && island.pair_gbyte_s != island.gpu_gbyte_s)
    add(fmt::format("{:.4g} a pair", *island.pair_gbyte_s));
  return box;
}

HostBox make_host(const Parts& parts, const HostParts& host) {
  HostBox box;
  box.id = host.host->id;
  box.title = parts.names.host(box.id);
  box.detail = host_detail(*host.host);
  box.mark = parts.mark(box.id);
  if (host.gpus.empty()) box.packages = make_packages(*host.host);
  const auto places = add_islands(parts, host, box);
  add_links(parts, host, places, box);
  add_stacks(parts, host, box);
  box.likeness = likeness_of(box);
  return box;
}

}  // namespace atoll_v1::atoll::drawing

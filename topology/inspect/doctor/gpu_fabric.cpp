// Checks of the fabric between GPUs: links, fabric manager, islands.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

#include "disjoint_sets.hpp"
#include "gpu_models.hpp"
#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

// The number of a GPU's NVLinks that are up, and the number that should be up.
struct LinkCount {
  std::optional<int> active, expected;
  // True if `active` was counted from the links in the topology. GPUs that are hidden from the
  // process lower this count.
  bool counted = false;
  bool switched = false;  // the GPU has links to a switch, so hidden GPUs do not lower `active`
  std::set<const GpuView*> peers = {};  // GPUs that links connect directly with the GPU
};

int as_int(double number) { return static_cast<int>(std::clamp(number, 0.0, 1e6)); }

class LinkCounts {
 public:
  explicit LinkCounts(const Machine& machine) : machine_(machine) {
    count_topology_links();
    for (const GpuView& gpu : machine.gpus) count(gpu);
  }

  const LinkCount& operator[](const GpuView* gpu) const { return counts_.at(gpu); }

 private:
  void count_topology_links() {
    for (const TopologyLink& link : machine_.topology.links) {
      if (link.type != "nvlink" && link.type != "nvlink_cpu") continue;
      const GpuView *a = machine_.gpu(link.a), *b = machine_.gpu(link.b);
      for (const GpuView* end : {a, b}) {
        if (end == nullptr) continue;
        linked_[end] += link.count;
        hosts_with_links_.insert(end->where);
      }
      if (link.type == "nvlink" && (a == nullptr) != (b == nullptr))
        counts_[a == nullptr ? b : a].switched = true;
      if (link.type == "nvlink" && a != nullptr && b != nullptr) {
        counts_[a].peers.insert(b);
        counts_[b].peers.insert(a);
      }
    }
  }

  void count(const GpuView& gpu) {
    LinkCount& count = counts_[&gpu];
    if (gpu.model != nullptr && gpu.model->kind == LinkKind::never) return;
    if (gpu.model != nullptr && gpu.model->links > 0) count.expected = gpu.model->links;
    const auto total = gpu.number(fact::nvlink_total), active = gpu.number(fact::nvlink_active);
    if (total && *total > 0) count.expected = as_int(*total);
    // The links of the GPU's host are known if the topology contains links of the host, or if a
    // source proved that the host has none. Islands can also be known from a fabric UUID alone;
    // then the topology contains no links.
    count.counted = !active && (hosts_with_links_.contains(gpu.where) ||
                                gpu.host()->gpu_links == IslandState::none);
    if (active)
      count.active = as_int(*active);
    else if (count.counted)
      count.active = linked_[&gpu];
  }

  const Machine& machine_;
  std::unordered_map<const GpuView*, LinkCount> counts_;
  std::unordered_map<const GpuView*, int> linked_;
  std::set<const HostView*> hosts_with_links_;
};

// Link counts of all GPUs of one model on one host.
struct Neighbours {
  std::size_t gpus = 0;
  int most_active = 0;
  bool switched = false;
  std::size_t most_peers = 0;
};

// True for PCIe cards, which have NVLinks only if a bridge is installed, and for workstation
// boards, which do not use all NVLinks of their GPUs.
bool is_card(const TopologyGpu& gpu) {
  constexpr std::array words{"PCIe",   "PCIE",  "H100 NVL", "H200 NVL", "RTX",   "GeForce",
                             "Quadro", "TITAN", "A30",      "A40",      "A6000", "DGXS"};
  return std::ranges::any_of(
      words, [&](const char* word) { return gpu.model.find(word) != std::string::npos; });
}

// True for GPUs that may lack links on purpose: cards, and GPUs of unknown model on a host whose
// links join nothing but pairs, as NVLink bridges do.
bool may_lack_bridge(const GpuView& gpu, bool joins_pairs) {
  return is_card(*gpu.part) || (gpu->model.empty() && joins_pairs);
}

// Returns the number of NVLinks that should be up, if it is certain that the GPU has fewer; else
// empty.
std::optional<int> should_have(const GpuView& gpu, const LinkCount& count, const Neighbours& like) {
  const int expected = std::max(count.expected.value_or(0), like.most_active);
  if (*count.active >= expected) return std::nullopt;
  if (gpu[fact::mig] == "yes") return std::nullopt;  // MIG mode turns NVLinks off
  if (may_lack_bridge(gpu, like.most_peers == 1 && !like.switched)) {
    // A PCIe card without an NVLink bridge has no links. This is not a fault.
    if (*count.active == 0 || *count.active >= like.most_active) return std::nullopt;
    return like.most_active;
  }
  // A container or VM with a single GPU may have its links turned off, which is no fault.
  if (*count.active == 0 && like.gpus < 2) return std::nullopt;
  if (count.counted && !count.switched && !like.switched) {
    // On a board without switches, a GPU that is hidden from the process also hides the links that
    // other GPUs have to it. No GPU is hidden if another GPU shows all its links, or if no GPU
    // shows any link.
    const bool in_container = gpu.host()[fact::container] == "yes";
    const bool all_shown = !in_container && like.most_active >= expected;
    if (!all_shown && like.most_active > 0) return std::nullopt;
  }
  return expected;
}

Problem down(const GpuModel* model, int active, int expected) {
  const double rate = model == nullptr ? 0 : model->link_gbyte_s;
  std::string cost = "the GPU reaches its neighbours over PCIe";
  if (active > 0 && rate > 0)
    cost = fmt::format("NVLink carries {:g} of {:g} GB/s", active * rate, expected * rate);
  else if (active > 0)
    cost = fmt::format("the GPU has {:.0f} % of its NVLink bandwidth", 100.0 * active / expected);
  else if (rate > 0)
    cost += fmt::format(" instead of NVLinks of {:g} GB/s", expected * rate);
  return {active == 0 ? error : warning, fmt::format("{} of {} NVLinks are up", active, expected),
          cost};
}

void look_at_host(const HostView& host, const LinkCounts& counts, CheckResult& result) {
  std::map<std::string_view, Neighbours> like;
  for (const GpuView* gpu : host.gpus) {
    const LinkCount& count = counts[gpu];
    Neighbours& same = like[(*gpu)->model];
    ++same.gpus;
    same.most_active = std::max(same.most_active, count.active.value_or(0));
    same.switched = same.switched || count.switched;
    same.most_peers = std::max(same.most_peers, count.peers.size());
  }
  for (const GpuView* gpu : host.gpus) {
    const LinkCount& count = counts[gpu];
    if (gpu->model != nullptr && gpu->model->kind == LinkKind::never) {
      result.not_checked("no GPU that can have NVLinks");
    } else if (!count.active) {
      result.lacks(host, fact::nvlink_active);
    } else {
      result.looked();
      if (const auto expected = should_have(*gpu, count, like[(*gpu)->model]))
        result.add(*gpu, down(gpu->model, *count.active, *expected));
    }
  }
}

void nvlink_down(const Machine& machine, CheckResult& result) {
  const LinkCounts counts(machine);
  for (const HostView& host : machine.hosts) look_at_host(host, counts, result);
}

void nvlink_errors(const Machine& machine, CheckResult& result) {
  std::vector<Subject> gpus;
  Range range;
  for (const GpuView& gpu : machine.gpus) {
    result.look(gpu, fact::nvlink_errors);
    const double errors = gpu.number(fact::nvlink_errors).value_or(0);
    if (errors <= 0) continue;
    gpus.emplace_back(gpu);
    range.add(errors);
  }
  if (!gpus.empty())
    result.add(gpus,
               {warning, fmt::format("{} link errors (CRC, replay, recovery)", range.text())});
}

void fabric_not_completed(const Machine& machine, CheckResult& result) {
  for (const GpuView& gpu : machine.gpus) {
    const std::string_view state = result.look(gpu, fact::fabric_state);
    const std::string_view status = gpu[fact::fabric_status];
    const bool failed = !status.empty() && status != "success" && status != "Success";
    const bool completed = state == "completed" && !failed;
    if (state.empty() || state == "not_supported" || completed) continue;
    result.add(gpu, {error, fmt::format("the state of the NVLink fabric is {}{}", state,
                                        failed ? fmt::format(", its status \"{}\"", status) : "")});
  }
}

void fabric_degraded(const Machine& machine, CheckResult& result) {
  for (const GpuView& gpu : machine.gpus) {
    const std::string_view health = result.look(gpu, fact::fabric_health);
    if (!health.empty() && health != "healthy" && health != "Healthy")
      result.add(gpu, {warning, fmt::format("the health of the NVLink fabric is: {}", health)});
  }
}

void imex_channel(const Machine& machine, CheckResult& result) {
  std::set<std::string_view> spanning, members;
  for (const Island& island : machine.islands)
    if (island.hosts.size() > 1) spanning.insert(island.hosts.begin(), island.hosts.end());
  for (const GpuView& gpu : machine.gpus)
    if (gpu[fact::fabric_cluster].find_first_not_of("0-") != std::string_view::npos)
      members.insert(gpu->host);
  for (const HostView& host : machine.hosts) {
    const bool spans = spanning.contains(host->id);
    if (!spans && !members.contains(host->id)) continue;
    const std::string_view channel = result.look(host, fact::imex_channel);
    if (!channel.empty() && channel != "yes")
      result.add(host, {spans ? error : warning,
                        "the GPUs belong to an NVLink domain of several hosts, but there is no "
                        "IMEX channel"});
  }
}

// Groups the islands that should be a single island: the islands of one host, or of several hosts
// that are connected by an island. The keys are the first hosts of the groups.
std::map<std::size_t, std::vector<const Island*>> domains_of(const Machine& machine) {
  const auto number_of = [&](const std::string& id) {
    const HostView* const host = machine.host(id);
    return host == nullptr ? std::nullopt : std::optional<std::size_t>(host - machine.hosts.data());
  };
  DisjointSets hosts(machine.hosts.size());
  for (const Island& island : machine.islands) {
    std::optional<std::size_t> first;
    for (const std::string& id : island.hosts)
      if (const auto host = number_of(id)) {
        if (!first) first = host;
        hosts.join(*first, *host);
      }
  }
  std::map<std::size_t, std::vector<const Island*>> domains;
  for (const Island& island : machine.islands)
    if (!island.gpus.empty() && island.state != IslandState::unknown)
      if (const auto host = number_of(island.hosts.front()))
        domains[hosts.root(*host)].push_back(&island);
  return domains;
}

const GpuView& first_gpu(const Machine& machine, const Island& island) {
  return *machine.gpu(island.gpus.front());
}

// Sorts islands by size, the largest first. Drops islands with another GPU model than the largest
// island, because a separate display card is not a fault.
std::vector<const Island*> like_the_largest(const Machine& machine,
                                            std::vector<const Island*> islands) {
  std::ranges::stable_sort(islands, std::ranges::greater(),
                           [](const Island* island) { return island->gpus.size(); });
  const std::string& model = first_gpu(machine, *islands.front())->model;
  std::erase_if(islands,
                [&](const Island* island) { return first_gpu(machine, *island)->model != model; });
  return islands;
}

void unequal_in_island(const Machine& machine, const LinkCounts& counts,
                       const std::vector<const Island*>& islands, CheckResult& result) {
  std::vector<Subject> outside;
  std::string sizes;
  std::size_t divisor = 0, all = 0;
  const Island& first = *islands.front();
  const std::size_t largest = first.gpus.size();
  for (const Island* island : islands) {
    const std::size_t size = island->gpus.size();
    sizes += fmt::format("{}{}", sizes.empty() ? "" : " + ", size);
    divisor = std::gcd(divisor, size);
    all += size;
    if (size < largest)
      for (const std::string& gpu : island->gpus) outside.emplace_back(*machine.gpu(gpu));
  }
  // Bridges may be missing on purpose. A bridge joins two cards, so one card of an odd number has
  // none. xGMI and switches that join two GPUs are part of a board, so they are no bridges.
  const bool joins_pairs = largest == 2 && first.fabric == "nvlink" &&
                           std::ranges::none_of(first.gpus, [&](const std::string& gpu) {
                             return counts[machine.gpu(gpu)].switched;
                           });
  const bool has_bridges = may_lack_bridge(first_gpu(machine, first), joins_pairs);
  const bool is_odd_one = has_bridges && largest == 2 && outside.size() == 1;
  result.add(outside, {is_odd_one    ? info
                       : has_bridges ? warning
                                     : error,
                       fmt::format("the {} GPUs form islands of {}", all, sizes),
                       fmt::format("a shard axis over all these GPUs crosses PCIe or the network; "
                                   "a shard axis inside the islands shrinks to {}, the common "
                                   "divisor of their sizes",
                                   divisor),
                       is_odd_one ? "an NVLink bridge joins two cards; leave the GPU "
                                    "out of CUDA_VISIBLE_DEVICES if the pair alone is faster"
                                  : "find out why these GPUs have no links to the others "
                                    "(nvidia-smi nvlink -s -i INDEX), or leave them out of "
                                    "CUDA_VISIBLE_DEVICES"});
}

void islands_unequal(const Machine& machine, CheckResult& result) {
  const LinkCounts counts(machine);
  std::map<std::string_view, Census<std::size_t>> sizes;  // island sizes of each GPU model
  std::vector<std::pair<const Island*, std::string_view>> whole;
  for (const auto& [host, all] : domains_of(machine)) {
    const std::vector<const Island*> islands = like_the_largest(machine, all);
    const Island& largest = *islands.front();
    result.looked();
    if (islands.back()->gpus.size() != largest.gpus.size()) {
      unequal_in_island(machine, counts, islands, result);
    } else if (largest.state == IslandState::known) {
      const std::string_view model = first_gpu(machine, largest)->model;
      sizes[model].add(largest.gpus.size());
      whole.emplace_back(&largest, model);
    }
  }
  for (const auto& [island, model] : whole) {
    const auto& [size, count] = sizes[model].majority();
    if (island->gpus.size() == size) continue;
    result.add(Subject(island->hosts.front()),
               {warning,
                fmt::format("an island of this host has {}, but {} on other hosts {} {}",
                            plural(island->gpus.size(), "GPU"), plural(count, "island"),
                            count == 1 ? "has" : "have", size),
                fmt::format("a shard axis that fits all islands shrinks to {}",
                            plural(std::gcd(island->gpus.size(), size), "GPU")),
                "look for lost GPUs (nvidia-smi -L; dmesg | grep Xid), or leave the host out"});
  }
  for (const HostView& host : machine.hosts)
    if (!host.gpus.empty()) result.lacks(host, fact::nvlink_active);
}

void links_unknown(const Machine& machine, CheckResult& result) {
  for (const Island& island : machine.islands) {
    if (island.gpus.empty()) continue;
    result.looked();
    if (island.state != IslandState::unknown || island.gpus.size() < 2) continue;
    const HostView* const host = machine.host(island.hosts.front());
    if (host == nullptr) continue;
    const std::string_view why = (*host)[fmt::format("{}nvml", fact::source_prefix)];
    result.add(*host,
               {info, fmt::format("no source shows the links between the GPUs of this host{}",
                                  why.empty() ? "" : fmt::format(" ({})", why))});
  }
}

void sources_conflict(const Machine& machine, CheckResult& result) {
  result.looked();
  for (const TopologyConflict& conflict : machine.topology.conflicts)
    result.add(Subject(conflict.subject),
               {warning, fmt::format("sources disagree about {}: {} is used, {} is ignored",
                                     conflict.member, conflict.believed, conflict.contradiction)});
}

void files_whole(const Machine& machine, CheckResult& result) {
  result.looked();
  for (const HostView& host : machine.hosts)
    for (const auto& [name, note] : host->facts)
      if (name.starts_with(fact::note_prefix))
        result.add(host,
                   {info, fmt::format("{}: {}", name.substr(fact::note_prefix.size()), note)});
}

constexpr CheckRow gpu_fabric_rows[] = {
    {"nvlink_down", "All NVLinks are up", nvlink_down, "no GPUs", "",
     "list the links: nvidia-smi nvlink -s -i INDEX; reset the GPU (nvidia-smi -r -i INDEX) or "
     "reboot; if links stay down, have the board or the bridge checked"},
    {"nvlink_errors", "NVLinks count no errors", nvlink_errors, "no GPUs",
     "damaged packets are sent again; a rising count often precedes the failure of a link",
     "watch the count under load: nvidia-smi nvlink -e -i INDEX; if it rises, have the board "
     "checked"},
    {"fabric_not_completed", "The NVLink fabric is set up", fabric_not_completed, "no GPUs",
     "CUDA does not start on these GPUs, or only without NVLink (error 802: system not yet "
     "initialized)",
     "systemctl status nvidia-fabricmanager; systemctl restart nvidia-fabricmanager; on racks, "
     "check the fabric manager of the switch trays"},
    {"fabric_degraded", "The NVLink fabric is healthy", fabric_degraded, "no GPUs",
     "NVLink is slower than it should be, or about to fail",
     "nvidia-smi -q -i INDEX | grep -A 12 Fabric; read the fabric manager's log "
     "(/var/log/fabricmanager.log)"},
    {"imex_channel", "NVLink domains of several hosts have IMEX channels", imex_channel,
     "no NVLink domain spans hosts",
     "GPUs of other hosts cannot be reached over NVLink; all traffic between hosts uses the NICs",
     "mkdir -p /dev/nvidia-caps-imex-channels; mknod /dev/nvidia-caps-imex-channels/channel0 c "
     "$(awk '/nvidia-caps-imex-channels/ {print $1}' /proc/devices) 0; systemctl restart "
     "nvidia-imex"},
    {"islands_unequal", "Islands are of equal size", islands_unequal, "no GPUs"},
    {"links_unknown", "The links between GPUs are known", links_unknown, "no GPUs",
     "the GPUs are treated as one island of unknown bandwidth",
     "run on the host: nvidia-smi topo -m > topo.txt; then pass both files of the host: --from "
     "HOST=FILE,topo.txt"},
    {"sources_conflict", "All sources agree about the machine", sources_conflict, "",
     "the description of this part may be wrong",
     "put the trusted source first: --from HOST=TRUSTED,OTHER"},
    {"files_whole", "Everything that the files list was read", files_whole, "",
     "the description of the machine lacks this part"},
};

}  // namespace

const std::span<const CheckRow> gpu_fabric_checks(gpu_fabric_rows);

}  // namespace atoll_v1::atoll::doctor

// Checks of the fabric between GPUs: links, fabric manager, islands.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

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
  std::set<std::size_t> peers = {};  // GPUs that links connect directly with the GPU
};

int as_int(double number) { return static_cast<int>(std::clamp(number, 0.0, 1e6)); }

class LinkCounts {
 public:
  explicit LinkCounts(const Machine& machine) : machine_(machine) {
    counts_.resize(machine.topology.gpus.size());
    count_topology_links();
    Numbers active(machine.gpu_facts[fact::nvlink_active]),
        total(machine.gpu_facts[fact::nvlink_total]);
    for (std::size_t i = 0; i < counts_.size(); ++i) count(i, active[i], total[i]);
  }

  const LinkCount& operator[](std::size_t gpu) const { return counts_[gpu]; }

 private:
  void count_topology_links() {
    linked_.resize(counts_.size());
    hosts_with_links_.resize(machine_.hosts.size());
    for (const TopologyLink& link : machine_.topology.links) {
      if (link.type != "nvlink" && link.type != "nvlink_cpu") continue;
      const std::size_t a = machine_.gpu_number(link.a), b = machine_.gpu_number(link.b);
      for (const std::size_t end : {a, b})
        if (end != nowhere) add(end, link.count);
      if (link.type == "nvlink" && (a == nowhere) != (b == nowhere))
        counts_[a == nowhere ? b : a].switched = true;
      if (link.type == "nvlink" && a != nowhere && b != nowhere) {
        counts_[a].peers.insert(b);
        counts_[b].peers.insert(a);
      }
    }
  }

  void add(std::size_t gpu, int links) {
    linked_[gpu] += links;
    const std::size_t host = machine_.gpu_hosts[gpu];
    if (host != nowhere) hosts_with_links_[host] = true;
  }

  void count(std::size_t gpu, std::optional<double> active, std::optional<double> total) {
    LinkCount& count = counts_[gpu];
    const GpuModel* model = machine_.models[gpu];
    if (model != nullptr && model->kind == LinkKind::never) return;
    if (model != nullptr && model->links > 0) count.expected = model->links;
    if (total && *total > 0) count.expected = as_int(*total);
    if (active) {
      count.active = as_int(*active);
    } else if (are_links_shown(gpu)) {
      count.active = linked_[gpu];
      count.counted = true;
    }
  }

  // True if the links of the GPU's host are known: the topology contains links of the host, or a
  // source proved that the host has none. Islands can also be known from a fabric UUID alone; then
  // the topology contains no links.
  bool are_links_shown(std::size_t gpu) const {
    const std::size_t host = machine_.gpu_hosts[gpu];
    return host != nowhere &&
           (hosts_with_links_[host] || machine_.hosts[host].host->gpu_links == IslandState::none);
  }

  const Machine& machine_;
  std::vector<LinkCount> counts_;
  std::vector<int> linked_;
  std::vector<bool> hosts_with_links_;
};

// Link counts of all GPUs of one model on one host.
struct Neighbours {
  std::size_t gpus = 0;
  int most_active = 0;
  bool switched = false;
  std::size_t most_peers = 0;
};

// True for GPUs that may lack links on purpose: cards, and GPUs of unknown model on a host whose
// links join nothing but pairs, as NVLink bridges do.
bool may_lack_bridge(const TopologyGpu& gpu, bool joins_pairs) {
  return is_card(gpu) || (gpu.model.empty() && joins_pairs);
}

// Returns the number of NVLinks that should be up, if it is certain that the GPU has fewer; else
// empty.
std::optional<int> should_have(const TopologyGpu& gpu, const LinkCount& count,
                               const Neighbours& like, bool in_container) {
  const int expected = std::max(count.expected.value_or(0), like.most_active);
  if (*count.active >= expected) return std::nullopt;
  if (get_fact(gpu.facts, fact::mig) == "yes") return std::nullopt;  // MIG mode turns NVLinks off
  if (may_lack_bridge(gpu, like.most_peers == 1 && !like.switched)) {
    // A PCIe card without an NVLink bridge has no links. This is not a fault.
    if (*count.active == 0) return std::nullopt;
    return like.most_active;
  }
  // If a container or virtual machine has a single GPU, the links of this GPU may be turned off.
  if (*count.active == 0 && like.gpus < 2) return std::nullopt;
  if (count.counted && !count.switched && !like.switched) {
    // On a board without switches, a GPU that is hidden from the process also hides the links that
    // other GPUs have to it. No GPU is hidden if another GPU shows all its links, or if no GPU
    // shows any link.
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
          cost,
          "list the links: nvidia-smi nvlink -s -i INDEX; reset the GPU (nvidia-smi -r -i INDEX) "
          "or reboot; if links stay down, have the board or the bridge checked"};
}

void look_at_host(const Machine& machine, const HostView& view, const LinkCounts& counts,
                  CheckResult& result) {
  const bool in_container = get_fact(view.host->facts, fact::container) == "yes";
  std::map<std::string_view, Neighbours> like;
  for (const std::size_t gpu : view.gpus) {
    Neighbours& same = like[machine.gpu(gpu).model];
    ++same.gpus;
    same.most_active = std::max(same.most_active, counts[gpu].active.value_or(0));
    same.switched = same.switched || counts[gpu].switched;
    same.most_peers = std::max(same.most_peers, counts[gpu].peers.size());
  }
  for (const std::size_t number : view.gpus) {
    const TopologyGpu& gpu = machine.gpu(number);
    const GpuModel* model = machine.models[number];
    if (model != nullptr && model->kind == LinkKind::never) {
      result.not_checked("no GPU that can have NVLinks");
      continue;
    }
    const LinkCount& count = counts[number];
    if (!count.active) {
      result.lacks(*view.host, fact::nvlink_active);
      continue;
    }
    result.looked();
    const auto expected = should_have(gpu, count, like[gpu.model], in_container);
    if (expected && *count.active < *expected)
      result.add(gpu, down(model, *count.active, *expected));
  }
}

void nvlink_down(const Machine& machine, CheckResult& result) {
  const LinkCounts counts(machine);
  for (const HostView& view : machine.hosts) look_at_host(machine, view, counts, result);
}

void nvlink_errors(const Machine& machine, CheckResult& result) {
  std::vector<Subject> gpus;
  Range range;
  Numbers errors(machine.gpu_facts[fact::nvlink_errors]);
  each_gpu(machine, result, fact::nvlink_errors, [&](std::size_t gpu, std::string_view) {
    if (errors[gpu].value_or(0) <= 0) return;
    gpus.emplace_back(machine.gpu(gpu));
    range.add(*errors[gpu]);
  });
  if (gpus.empty()) return;
  result.add(gpus,
             {warning, fmt::format("{} link errors (CRC, replay, recovery)", range.text()),
              "damaged packets are sent again; a rising count often precedes the failure of a link",
              "watch the count under load: nvidia-smi nvlink -e -i INDEX; if it rises, have the "
              "board checked"});
}

void fabric_not_completed(const Machine& machine, CheckResult& result) {
  const auto statuses = machine.gpu_facts[fact::fabric_status];
  each_gpu(machine, result, fact::fabric_state, [&](std::size_t gpu, std::string_view state) {
    const std::string_view status = statuses[gpu];
    const bool failed = !status.empty() && status != "success" && status != "Success";
    const bool completed = state == "completed" && !failed;
    if (state == "not_supported" || completed) return;
    result.add(machine.gpu(gpu),
               {error,
                fmt::format("the state of the NVLink fabric is {}{}", state,
                            failed ? fmt::format(", its status \"{}\"", status) : ""),
                "CUDA does not start on these GPUs, or only without NVLink (error 802: system not "
                "yet initialized)",
                "systemctl status nvidia-fabricmanager; systemctl restart nvidia-fabricmanager; on "
                "racks, check the fabric manager of the switch trays"});
  });
}

void fabric_degraded(const Machine& machine, CheckResult& result) {
  each_gpu(machine, result, fact::fabric_health, [&](std::size_t gpu, std::string_view health) {
    if (health == "healthy" || health == "Healthy") return;
    result.add(machine.gpu(gpu),
               {warning, fmt::format("the health of the NVLink fabric is: {}", health),
                "NVLink is slower than it should be, or about to fail",
                "nvidia-smi -q -i INDEX | grep -A 12 Fabric; read the fabric manager's log "
                "(/var/log/fabricmanager.log)"});
  });
}

void imex_channel(const Machine& machine, CheckResult& result) {
  std::set<std::string_view> spanning, members;
  for (const Island& island : machine.islands)
    if (island.hosts.size() > 1) spanning.insert(island.hosts.begin(), island.hosts.end());
  const auto clusters = machine.gpu_facts[fact::fabric_cluster];
  for (std::size_t gpu = 0; gpu < clusters.size(); ++gpu)
    if (clusters[gpu].find_first_not_of("0-") != std::string_view::npos)
      members.insert(machine.gpu(gpu).host);
  for (const HostView& view : machine.hosts) {
    const bool spans = spanning.contains(view.host->id);
    if (!spans && !members.contains(view.host->id)) continue;
    const std::string_view channel = get_fact(view.host->facts, fact::imex_channel);
    if (channel.empty()) {
      result.lacks(*view.host, fact::imex_channel);
      continue;
    }
    result.looked();
    if (channel == "yes") continue;
    result.add(
        *view.host,
        {spans ? error : warning,
         "the GPUs belong to an NVLink domain of several hosts, but there is no IMEX channel",
         "GPUs of other hosts cannot be reached over NVLink; all traffic between hosts uses the "
         "NICs",
         "mkdir -p /dev/nvidia-caps-imex-channels; mknod /dev/nvidia-caps-imex-channels/channel0 c "
         "$(awk '/nvidia-caps-imex-channels/ {print $1}' /proc/devices) 0; systemctl restart "
         "nvidia-imex"});
  }
}

// Groups the islands that should be a single island: the islands of one host, or of several hosts
// that are connected by an island.
class Domains {
 public:
  explicit Domains(const Machine& machine) : parents_(machine.hosts.size()) {
    std::iota(parents_.begin(), parents_.end(), std::size_t{0});
    for (const Island& island : machine.islands) {
      std::size_t first = nowhere;
      for (const std::string& host : island.hosts) {
        const std::size_t number = machine.host_number(host);
        if (number == nowhere) continue;
        if (first == nowhere) first = root(number);
        parents_[root(number)] = first;
      }
    }
    for (std::size_t i = 0; i < machine.islands.size(); ++i) {
      const Island& island = machine.islands[i];
      if (island.gpus.empty() || island.state == IslandState::unknown) continue;
      const std::size_t host = machine.host_number(island.hosts.front());
      if (host != nowhere) islands[root(host)].push_back(i);
    }
  }

  // Maps the first host of each group to the islands of the group.
  std::map<std::size_t, std::vector<std::size_t>> islands;

 private:
  std::size_t root(std::size_t host) {
    while (parents_[host] != host) host = parents_[host] = parents_[parents_[host]];
    return host;
  }
  std::vector<std::size_t> parents_;
};

const TopologyGpu& first_gpu(const Machine& machine, const Island& island) {
  return machine.gpu(machine.gpu_number(island.gpus.front()));
}

// Sorts islands by size, the largest first. Drops islands with another GPU model than the largest
// island, because a separate display card is not a fault.
std::vector<std::size_t> like_the_largest(const Machine& machine,
                                          std::vector<std::size_t> islands) {
  const auto size = [&](std::size_t island) { return machine.islands[island].gpus.size(); };
  std::ranges::stable_sort(islands, std::ranges::greater(), size);
  const std::string& model = first_gpu(machine, machine.islands[islands.front()]).model;
  std::erase_if(islands, [&](std::size_t island) {
    return first_gpu(machine, machine.islands[island]).model != model;
  });
  return islands;
}

void unequal_inside(const Machine& machine, const LinkCounts& counts,
                    const std::vector<std::size_t>& islands, CheckResult& result) {
  std::vector<Subject> outside;
  std::string sizes;
  std::size_t divisor = 0, all = 0;
  const Island& first = machine.islands[islands.front()];
  const std::size_t largest = first.gpus.size();
  for (const std::size_t island : islands) {
    const std::vector<std::string>& gpus = machine.islands[island].gpus;
    sizes += fmt::format("{}{}", sizes.empty() ? "" : " + ", gpus.size());
    divisor = std::gcd(divisor, gpus.size());
    all += gpus.size();
    if (gpus.size() == largest) continue;
    for (const std::string& gpu : gpus) outside.emplace_back(machine.gpu(machine.gpu_number(gpu)));
  }
  // Bridges may be missing on purpose. A bridge joins two cards, so one card of an odd number has
  // none. xGMI and switches may also join two GPUs, but these are on a board.
  const bool joins_pairs = largest == 2 && first.fabric == "nvlink" &&
                           std::ranges::none_of(first.gpus, [&](const std::string& gpu) {
                             return counts[machine.gpu_number(gpu)].switched;
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
  Domains domains(machine);
  std::map<std::string_view, Census<std::size_t>> sizes;  // island sizes of each GPU model
  std::vector<std::pair<const Island*, std::string_view>> whole;
  for (const auto& [host, all] : domains.islands) {
    const std::vector<std::size_t> islands = like_the_largest(machine, all);
    const Island& largest = machine.islands[islands.front()];
    result.looked();
    if (machine.islands[islands.back()].gpus.size() != largest.gpus.size()) {
      unequal_inside(machine, counts, islands, result);
    } else if (largest.state == IslandState::known) {
      const std::string_view model = first_gpu(machine, largest).model;
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
  for (const HostView& view : machine.hosts)
    if (!view.gpus.empty()) result.lacks(*view.host, "nvlink.active");
}

void links_unknown(const Machine& machine, CheckResult& result) {
  for (const Island& island : machine.islands) {
    if (island.gpus.empty()) continue;
    result.looked();
    if (island.state != IslandState::unknown || island.gpus.size() < 2) continue;
    const std::size_t host = machine.host_number(island.hosts.front());
    if (host == nowhere) continue;
    const TopologyHost& where = machine.topology.hosts[host];
    const std::string_view why = get_fact(where.facts, "source.nvml");
    result.add(where,
               {info,
                fmt::format("no source shows the links between the GPUs of this host{}",
                            why.empty() ? "" : fmt::format(" ({})", why)),
                "the GPUs are treated as one island of unknown bandwidth",
                "run on the host: nvidia-smi topo -m > topo.txt; then pass both files of the "
                "host: --from HOST=FILE,topo.txt"});
  }
}

void sources_conflict(const Machine& machine, CheckResult& result) {
  result.looked();
  for (const TopologyConflict& conflict : machine.topology.conflicts)
    result.add(Subject(conflict.subject),
               {warning,
                fmt::format("sources disagree about {}: {} is used, {} is ignored", conflict.member,
                            conflict.believed, conflict.contradiction),
                "the description of this part may be wrong",
                "put the trusted source first: --from HOST=TRUSTED,OTHER"});
}

void files_whole(const Machine& machine, CheckResult& result) {
  result.looked();
  for (const HostView& view : machine.hosts)
    for (const auto& [name, note] : view.host->facts)
      if (name.starts_with(fact::note_prefix))
        result.add(*view.host,
                   {info, fmt::format("{}: {}", name.substr(fact::note_prefix.size()), note),
                    "the description of the machine lacks this part"});
}

constexpr CheckRow rows[] = {
    {"nvlink_down", "All NVLinks are up", nvlink_down, "no GPUs"},
    {"nvlink_errors", "NVLinks count no errors", nvlink_errors, "no GPUs"},
    {"fabric_not_completed", "The NVLink fabric is set up", fabric_not_completed, "no GPUs"},
    {"fabric_degraded", "The NVLink fabric is healthy", fabric_degraded, "no GPUs"},
    {"imex_channel", "NVLink domains of several hosts have IMEX channels", imex_channel,
     "no NVLink domain spans hosts"},
    {"islands_unequal", "Islands are of equal size", islands_unequal, "no GPUs"},
    {"links_unknown", "The links between GPUs are known", links_unknown, "no GPUs"},
    {"sources_conflict", "All sources agree about the machine", sources_conflict, ""},
    {"files_whole", "Everything that the files list was read", files_whole, ""},
};

}  // namespace

const std::span<const CheckRow> gpu_fabric_checks(rows);

}  // namespace atoll_v1::atoll::doctor

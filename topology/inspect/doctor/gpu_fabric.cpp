// The fabric between GPUs: links, fabric manager, islands.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "inspect/doctor/check.hpp"
#include "gpu_models.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

// --- nvlink_down ---

// How many NVLinks of a GPU are up, and how many should be.
struct LinkCount {
  std::optional<int> active, expected;
  bool counted = false;   // from the links in the topology, which hidden peers take away
  bool switched = false;  // hangs on a switch: peers that are hidden do not matter
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
    const auto none = machine_.gpu_numbers.end();
    for (const TopologyLink& link : machine_.topology.links) {
      if (link.type != "nvlink" && link.type != "nvlink_cpu") continue;
      const auto a = machine_.gpu_numbers.find(link.a), b = machine_.gpu_numbers.find(link.b);
      for (const auto& end : {a, b})
        if (end != none) add(end->second, link.count);
      if (link.type == "nvlink" && (a == none) != (b == none))
        counts_[(a == none ? b : a)->second].switched = true;
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

  // An island may be known by its fabric's UUID alone, without a single link.
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

// What the like GPUs of one host show.
struct Neighbours {
  std::size_t gpus = 0;
  int most_active = 0;
  bool switched = false;
};

// How many links a GPU lacks is judged only where something proves that it should have them.
std::optional<int> should_have(const TopologyGpu& gpu, const LinkCount& count,
                               const Neighbours& like, bool in_container) {
  const int expected = std::max(count.expected.value_or(0), like.most_active);
  if (*count.active >= expected) return std::nullopt;
  if (get_fact(gpu.facts, fact::mig) == "yes") return std::nullopt;  // MIG switches them off
  if (is_card(gpu)) {
    // Without a bridge a card has no link, which is no fault.
    if (*count.active == 0) return std::nullopt;
    return like.most_active;
  }
  // The only GPU that a container or virtual machine got may have its links switched off.
  if (*count.active == 0 && like.gpus < 2) return std::nullopt;
  if (count.counted && !count.switched && !like.switched) {
    // On boards without a switch a hidden GPU hides the links to it. A neighbour with all its links
    // proves that none is hidden; so does it when no link is shown at all.
    const bool all_shown = !in_container && like.most_active >= expected;
    if (!all_shown && like.most_active > 0) return std::nullopt;
  }
  return expected;
}

Trouble down(const GpuModel* model, int active, int expected) {
  const double rate = model == nullptr ? 0 : model->link_gbyte_s;
  std::string cost = "it reaches its neighbours over PCIe";
  if (active > 0 && rate > 0)
    cost = fmt::format("carries {:g} of {:g} GB/s", active * rate, expected * rate);
  else if (active > 0)
    cost = fmt::format("carries {:.0f} % of its NVLink bandwidth", 100.0 * active / expected);
  else if (rate > 0)
    cost += fmt::format(", not at {:g} GB/s", expected * rate);
  return {.severity = active == 0 ? Severity::error : Severity::warning,
          .evidence = fmt::format("{} of {} NVLinks are up", active, expected),
          .consequence = cost,
          .fix =
              "see which: nvidia-smi nvlink -s -i INDEX; reset the GPU (nvidia-smi -r -i INDEX) "
              "or reboot; if they stay down, have the board or the bridge looked at"};
}

void look_at_host(const Machine& machine, const HostView& view, const LinkCounts& counts,
                  Verdict& verdict) {
  const bool in_container = get_fact(view.host->facts, fact::container) == "yes";
  std::map<std::string_view, Neighbours> like;
  for (const std::size_t gpu : view.gpus) {
    Neighbours& same = like[machine.gpu(gpu).model];
    ++same.gpus;
    same.most_active = std::max(same.most_active, counts[gpu].active.value_or(0));
    same.switched = same.switched || counts[gpu].switched;
  }
  for (const std::size_t number : view.gpus) {
    const TopologyGpu& gpu = machine.gpu(number);
    const GpuModel* model = machine.models[number];
    if (model != nullptr && model->kind == LinkKind::never) {
      verdict.not_checked("no GPU that can have NVLinks");
      continue;
    }
    const LinkCount& count = counts[number];
    if (!count.active) {
      verdict.lacks(*view.host, fact::nvlink_active);
      continue;
    }
    verdict.looked();
    const auto expected = should_have(gpu, count, like[gpu.model], in_container);
    if (expected && *count.active < *expected)
      verdict.add(Subject(gpu), down(model, *count.active, *expected));
  }
}

void nvlink_down(const Machine& machine, Verdict& verdict) {
  if (machine.topology.gpus.empty()) return verdict.not_checked("no GPUs");
  const LinkCounts counts(machine);
  for (const HostView& view : machine.hosts) look_at_host(machine, view, counts, verdict);
}

void nvlink_errors(const Machine& machine, Verdict& verdict) {
  std::vector<Subject> gpus;
  Range range;
  Numbers errors(machine.gpu_facts[fact::nvlink_errors]);
  each_gpu(machine, verdict, fact::nvlink_errors, [&](std::size_t gpu, std::string_view) {
    if (errors[gpu].value_or(0) <= 0) return;
    gpus.emplace_back(machine.gpu(gpu));
    range.add(*errors[gpu]);
  });
  if (gpus.empty()) return;
  verdict.add(gpus,
              {.severity = Severity::warning,
               .evidence = fmt::format("{} link errors (CRC, replay, recovery)", range.text()),
               .consequence = "what is damaged is sent again; a count that rises goes before "
                              "a link that fails",
               .fix = "watch it under load: nvidia-smi nvlink -e -i INDEX; if it rises, have "
                      "the board looked at"});
}

// --- the fabric manager ---

void fabric_not_completed(const Machine& machine, Verdict& verdict) {
  const auto statuses = machine.gpu_facts[fact::fabric_status];
  each_gpu(machine, verdict, fact::fabric_state, [&](std::size_t gpu, std::string_view state) {
    const std::string_view status = statuses[gpu];
    const bool failed = !status.empty() && status != "success" && status != "Success";
    const bool completed = state == "completed" && !failed;
    if (state == "not_supported" || completed) return;
    verdict.add(Subject(machine.gpu(gpu)),
                {.severity = Severity::error,
                 .evidence = fmt::format("the state of the NVLink fabric is {}{}", state,
                                         failed ? fmt::format(", its status \"{}\"", status) : ""),
                 .consequence = "CUDA does not start on these GPUs, or only without NVLink (error "
                                "802: system not yet initialized)",
                 .fix = "systemctl status nvidia-fabricmanager; systemctl restart "
                        "nvidia-fabricmanager; on racks look at the fabric manager of the switch "
                        "trays"});
  });
}

void fabric_degraded(const Machine& machine, Verdict& verdict) {
  each_gpu(machine, verdict, fact::fabric_health, [&](std::size_t gpu, std::string_view health) {
    if (health == "healthy" || health == "Healthy") return;
    verdict.add(Subject(machine.gpu(gpu)),
                {.severity = Severity::warning,
                 .evidence = fmt::format("the health of the NVLink fabric is: {}", health),
                 .consequence = "NVLink is slower than it should be, or about to fail",
                 .fix = "nvidia-smi -q -i INDEX | grep -A 12 Fabric; look at the fabric manager's "
                        "log (/var/log/fabricmanager.log)"});
  });
}

void imex_channel(const Machine& machine, Verdict& verdict) {
  if (machine.topology.gpus.empty()) return verdict.not_checked("no GPUs");
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
      verdict.lacks(*view.host, fact::imex_channel);
      continue;
    }
    verdict.looked();
    if (channel == "yes") continue;
    verdict.add(
        Subject(*view.host),
        {.severity = spans ? Severity::error : Severity::warning,
         .evidence = "the GPUs belong to an NVLink domain of several hosts, and there is no IMEX "
                     "channel",
         .consequence = "GPUs of other hosts cannot be reached over NVLink; all traffic between "
                        "hosts takes the NICs",
         .fix = "mkdir -p /dev/nvidia-caps-imex-channels; mknod "
                "/dev/nvidia-caps-imex-channels/channel0 c $(awk '/nvidia-caps-imex-channels/ "
                "{print $1}' /proc/devices) 0; systemctl restart nvidia-imex"});
  }
  if (spanning.empty() && members.empty()) verdict.not_checked("no NVLink domain spans hosts");
}

// --- islands ---

// The islands that should be one: those of a host, or of hosts that an island joins.
class Domains {
 public:
  explicit Domains(const Machine& machine) : parents_(machine.hosts.size()) {
    std::iota(parents_.begin(), parents_.end(), std::size_t{0});
    for (const Island& island : machine.islands) {
      std::size_t first = nowhere;
      for (const std::string& host : island.hosts) {
        const auto found = machine.host_numbers.find(host);
        if (found == machine.host_numbers.end()) continue;
        if (first == nowhere) first = root(found->second);
        parents_[root(found->second)] = first;
      }
    }
    for (std::size_t i = 0; i < machine.islands.size(); ++i) {
      const Island& island = machine.islands[i];
      if (island.gpus.empty() || island.state == IslandState::unknown) continue;
      const auto host = machine.host_numbers.find(island.hosts.front());
      if (host != machine.host_numbers.end()) islands[root(host->second)].push_back(i);
    }
  }

  std::map<std::size_t, std::vector<std::size_t>> islands;  // first host -> its islands

 private:
  std::size_t root(std::size_t host) {
    while (parents_[host] != host) host = parents_[host] = parents_[parents_[host]];
    return host;
  }
  std::vector<std::size_t> parents_;
};

const TopologyGpu& first_gpu(const Machine& machine, const Island& island) {
  return machine.gpu(machine.gpu_numbers.find(island.gpus.front())->second);
}

// Islands of GPUs like those of the largest one, which comes first. A display card beside them is
// not a fault.
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

void unequal_inside(const Machine& machine, const std::vector<std::size_t>& islands,
                    Verdict& verdict) {
  std::vector<Subject> outside;
  std::string sizes;
  std::size_t divisor = 0, all = 0;
  const std::size_t largest = machine.islands[islands.front()].gpus.size();
  for (const std::size_t island : islands) {
    const std::vector<std::string>& gpus = machine.islands[island].gpus;
    sizes += fmt::format("{}{}", sizes.empty() ? "" : " + ", gpus.size());
    divisor = std::gcd(divisor, gpus.size());
    all += gpus.size();
    if (gpus.size() == largest) continue;
    for (const std::string& gpu : gpus)
      outside.emplace_back(machine.gpu(machine.gpu_numbers.find(gpu)->second));
  }
  verdict.add(outside,
              {.severity = is_card(first_gpu(machine, machine.islands[islands.front()]))
                               ? Severity::warning  // bridges may have been left out on purpose
                               : Severity::error,
               .evidence = fmt::format("the {} GPUs form islands of {}", all, sizes),
               .consequence = fmt::format(
                   "a shard axis over all of them crosses PCIe or the network; one that does not "
                   "shrinks to {}, their common divisor",
                   divisor),
               .fix = "find out why they have no links (nvidia-smi nvlink -s -i INDEX), or leave "
                      "them out of CUDA_VISIBLE_DEVICES"});
}

void islands_unequal(const Machine& machine, Verdict& verdict) {
  if (machine.topology.gpus.empty()) return verdict.not_checked("no GPUs");
  Domains domains(machine);
  std::map<std::string_view, Census<std::size_t>> sizes;  // by model, of whole domains
  std::vector<std::pair<const Island*, std::string_view>> whole;
  for (const auto& [host, all] : domains.islands) {
    const std::vector<std::size_t> islands = like_the_largest(machine, all);
    const Island& largest = machine.islands[islands.front()];
    verdict.looked();
    if (machine.islands[islands.back()].gpus.size() != largest.gpus.size()) {
      unequal_inside(machine, islands, verdict);
    } else if (largest.state == IslandState::known) {
      const std::string_view model = first_gpu(machine, largest).model;
      sizes[model].add(largest.gpus.size());
      whole.emplace_back(&largest, model);
    }
  }
  for (const auto& [island, model] : whole) {
    const auto& [size, count] = sizes[model].majority();
    if (island->gpus.size() == size) continue;
    verdict.add(Subject(island->hosts.front()),
                {.severity = Severity::warning,
                 .evidence = fmt::format("an island here has {}, {} elsewhere have {}",
                                         plural(island->gpus.size(), "GPU"), count, size),
                 .consequence = fmt::format("one shard axis for all islands shrinks to {}",
                                            std::gcd(island->gpus.size(), size)),
                 .fix = "look for GPUs that are gone (nvidia-smi -L; dmesg | grep Xid), or leave "
                        "the host out"});
  }
  for (const HostView& view : machine.hosts)
    if (!view.gpus.empty()) verdict.lacks(*view.host, "nvlink.active");
}

void links_unknown(const Machine& machine, Verdict& verdict) {
  if (machine.topology.gpus.empty()) return verdict.not_checked("no GPUs");
  for (const Island& island : machine.islands) {
    if (island.gpus.empty()) continue;
    verdict.looked();
    if (island.state != IslandState::unknown || island.gpus.size() < 2) continue;
    const auto host = machine.host_numbers.find(island.hosts.front());
    if (host == machine.host_numbers.end()) continue;
    const TopologyHost& where = machine.topology.hosts[host->second];
    const std::string_view why = get_fact(where.facts, "source.nvml");
    verdict.add(Subject(where),
                {.severity = Severity::info,
                 .evidence = fmt::format("no source says how its GPUs are joined{}",
                                         why.empty() ? "" : fmt::format(" ({})", why)),
                 .consequence = "they are taken as one group of unknown bandwidth",
                 .fix = "on the host: nvidia-smi topo -m > topo.txt, then give both files: --from "
                        "HOST=FILE,topo.txt"});
  }
}

void sources_conflict(const Machine& machine, Verdict& verdict) {
  verdict.looked();
  for (const TopologyConflict& conflict : machine.topology.conflicts)
    verdict.add(Subject(conflict.subject),
                {.severity = Severity::warning,
                 .evidence = fmt::format("{}: {} is believed, {} contradicts it", conflict.member,
                                         conflict.believed, conflict.contradiction),
                 .consequence = "what is said of this part may be wrong",
                 .fix = "name the source to be trusted first: --from HOST=TRUSTED,OTHER"});
}

constexpr CheckRow rows[] = {
    {"nvlink_down", "All NVLinks are up", nvlink_down},
    {"nvlink_errors", "NVLinks have no errors", nvlink_errors},
    {"fabric_not_completed", "The NVLink fabric is set up", fabric_not_completed},
    {"fabric_degraded", "The NVLink fabric is healthy", fabric_degraded},
    {"imex_channel", "NVLink domains of several hosts have IMEX channels", imex_channel},
    {"islands_unequal", "Islands are of equal size", islands_unequal},
    {"links_unknown", "The links between GPUs are known", links_unknown},
    {"sources_conflict", "Sources agree", sources_conflict},
};

}  // namespace

const std::span<const CheckRow> gpu_fabric_checks(rows);

}  // namespace atoll_v1::atoll::doctor

// Checks of a job: the GPUs, sockets, cores and mesh of its ranks, and whether its hosts are alike.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "disjoint_sets.hpp"
#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

Subject rank_subject(std::size_t rank) { return Subject(fmt::format("rank {}", rank)); }

using Ranks = std::vector<std::size_t>;

std::string ranges(const Ranks& ranks) {
  return number_ranges(std::vector<int>(ranks.begin(), ranks.end()));
}

void ranks_share_gpu(const Machine& machine, CheckResult& result) {
  std::map<std::string_view, Ranks> users;
  for (std::size_t rank = 0; rank < machine.ranks.size(); ++rank)
    if (!machine.ranks[rank].gpu.empty()) users[machine.ranks[rank].gpu].push_back(rank);
  std::vector<Subject> subjects;
  std::vector<std::string> cases;
  for (const auto& [id, ranks] : users) {
    result.looked();
    std::set<std::string_view> partitions;
    for (const std::size_t rank : ranks) partitions.insert(machine.ranks[rank].partition);
    if (ranks.size() == 1 || (partitions.size() == ranks.size() && !partitions.contains("")))
      continue;
    cases.push_back(
        fmt::format("ranks {} use {}", ranges(ranks), machine.names.device(std::string(id))));
    for (const std::size_t rank : ranks) subjects.push_back(rank_subject(rank));
    const GpuView* const gpu = machine.gpu(id);
    subjects.push_back(gpu == nullptr ? Subject(std::string(id)) : Subject(*gpu));
  }
  if (!machine.ranks.empty()) result.not_checked("no rank has a GPU");
  if (!cases.empty()) result.add(subjects, {error, enumerate(cases, 4)});
}

// Finds the package (socket) of a NUMA node. The package is known if a device of the host reports
// both its NUMA node and its package. If no device does, the nodes are divided evenly among the
// packages.
class Packages {
 public:
  explicit Packages(const Machine& machine) {
    const auto learn = [&](const auto& devices) {
      for (const auto& device : devices)
        if (device.numa >= 0 && device.package >= 0)
          seen_[{device.host, device.numa}] = device.package;
    };
    learn(machine.topology.gpus);
    learn(machine.topology.nics);
  }

  std::optional<int> of(const TopologyHost& host, int numa) const {
    if (numa < 0) return std::nullopt;
    if (host.packages == 1) return 0;
    if (const auto found = seen_.find({host.id, numa}); found != seen_.end()) return found->second;
    if (host.packages <= 0 || numa >= host.numa_nodes || host.numa_nodes % host.packages != 0)
      return std::nullopt;
    return numa / (host.numa_nodes / host.packages);
  }

 private:
  std::map<std::pair<std::string_view, int>, int> seen_;
};

void rank_off_socket(const Machine& machine, CheckResult& result) {
  const Packages packages(machine);
  for (std::size_t rank = 0; rank < machine.ranks.size(); ++rank) {
    const RankSite& site = machine.ranks[rank];
    const GpuView* const view = machine.gpu(site.gpu);
    if (view == nullptr) {
      result.not_checked("no rank has a GPU");
      continue;
    }
    const TopologyGpu& gpu = *view->part;
    const TopologyHost& host = *view->host().part;
    const auto here = packages.of(host, site.numa);
    const auto there = gpu.package >= 0 && host.packages != 1 ? std::optional(gpu.package)
                                                              : packages.of(host, gpu.numa);
    if (!here || !there) {
      result.not_checked(site.numa < 0 ? "no rank is bound to one NUMA node"
                                       : "no source shows the sockets of the GPUs");
      continue;
    }
    result.looked();
    if (*here != *there)
      result.add({rank_subject(rank), Subject(*view)},
                 {warning,
                  fmt::format("the rank runs on NUMA node {} of socket {}, its GPU is on socket {}",
                              site.numa, *here, *there)});
  }
}

// Ranks of one host that share hardware threads, either directly or through other ranks of the
// group.
struct Crowd {
  Ranks ranks;
  std::set<int> cpus;
  bool equal = true;  // true if all ranks have the same set of hardware threads
};

std::vector<Crowd> crowds_of(const Machine& machine, const Ranks& ranks) {
  DisjointSets sets(ranks.size());
  std::unordered_map<int, std::size_t> owners;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    for (const int cpu : machine.ranks[ranks[i]].cpus) {
      const auto [at, is_new] = owners.try_emplace(cpu, i);
      if (!is_new) sets.join(at->second, i);
    }
  std::map<std::size_t, Crowd> crowds;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Crowd& crowd = crowds[sets.root(i)];
    const std::vector<int>& cpus = machine.ranks[ranks[i]].cpus;
    const std::set<int> own(cpus.begin(), cpus.end());
    crowd.equal = crowd.equal && (crowd.ranks.empty() || own == crowd.cpus);
    crowd.ranks.push_back(ranks[i]);
    crowd.cpus.insert(own.begin(), own.end());
  }
  std::vector<Crowd> result;
  for (auto& [first, crowd] : crowds)
    if (crowd.ranks.size() > 1) result.push_back(std::move(crowd));
  return result;
}

// True if ranks must share cores. Ranks with equal sets of threads are bound to the same part of
// the host on purpose, so they are crowded only if there is less than one core for each rank. Sets
// that overlap only partly are never intended.
bool is_crowded(const Crowd& crowd, const HostView* host) {
  if (!crowd.equal) return true;
  const bool smt =
      host != nullptr && (*host)->host_threads > (*host)->host_cores && (*host)->host_cores > 0;
  const std::size_t each = smt ? 2 : 1;
  return crowd.cpus.size() < each * crowd.ranks.size();
}

void ranks_share_core(const Machine& machine, CheckResult& result) {
  std::map<std::string_view, Ranks> bound;
  for (std::size_t rank = 0; rank < machine.ranks.size(); ++rank) {
    const RankSite& site = machine.ranks[rank];
    const HostView* const host = machine.host(site.host);
    if (site.cpus.empty()) {
      result.not_checked("no rank reports its CPUs");
      continue;
    }
    result.looked();
    const int threads = host == nullptr ? 0 : (*host)->host_threads;
    // A rank that may use every thread of the host is not bound, so sharing cores is no fault.
    if (threads <= 0 || site.cpus.size() < static_cast<std::size_t>(threads))
      bound[site.host].push_back(rank);
  }
  std::vector<Subject> subjects;
  std::vector<std::string> cases;
  for (const auto& [id, ranks] : bound)
    for (const Crowd& crowd : crowds_of(machine, ranks)) {
      if (!is_crowded(crowd, machine.host(id))) continue;
      cases.push_back(fmt::format("ranks {} on {} share {}", ranges(crowd.ranks),
                                  machine.names.host(std::string(id)),
                                  plural(crowd.cpus.size(), "hardware thread")));
      for (const std::size_t rank : crowd.ranks) subjects.push_back(rank_subject(rank));
    }
  if (!cases.empty()) result.add(subjects, {warning, enumerate(cases, 4)});
}

// How the rows of a mesh match islands. A row is a shard group with its tensor-parallel ranks.
struct Rows {
  std::size_t all = 0;             // number of rows of the mesh
  std::size_t crossing = 0;        // rows that consist of several whole islands
  std::size_t splitting = 0;       // rows that span islands and contain only a part of one
  std::size_t islands = 0;         // largest number of islands in one row
  std::set<const Island*> narrow;  // islands that contain a whole row and other ranks
  bool known = false;              // true if at least one rank is in a known island
};

Rows look_at_rows(const Machine& machine) {
  const MeshPlan& plan = *machine.plan;
  std::vector<const Island*> island_of(machine.ranks.size());  // null for a rank in no known island
  std::map<const Island*, std::size_t> ranks_in;
  for (std::size_t rank = 0; rank < machine.ranks.size(); ++rank) {
    const GpuView* const gpu = machine.gpu(machine.ranks[rank].gpu);
    if (gpu == nullptr || gpu->island == nullptr || gpu->island->state != IslandState::known ||
        gpu->island->gpus.size() < 2)
      continue;
    island_of[rank] = gpu->island;
    ++ranks_in[gpu->island];
  }
  Rows rows;
  const auto width = static_cast<std::size_t>(std::max(1, plan.shard)) *
                     static_cast<std::size_t>(std::max(1, plan.tensor));
  for (std::size_t begin = 0; begin + width <= plan.order.size(); begin += width) {
    std::map<const Island*, std::size_t> parts;  // number of the row's ranks in each island
    for (std::size_t i = begin; i < begin + width; ++i) {
      const auto rank = static_cast<std::size_t>(plan.order[i]);
      ++parts[rank < island_of.size() ? island_of[rank] : nullptr];
    }
    ++rows.all;
    const bool is_unknown = parts.contains(nullptr);
    rows.known = rows.known || parts.size() > 1 || !is_unknown;
    if (is_unknown && parts.size() == 1) continue;
    const bool whole = !is_unknown && std::ranges::all_of(parts, [&](const auto& part) {
      return part.second == ranks_in[part.first];
    });
    rows.islands = std::max(rows.islands, parts.size());
    if (parts.size() > 1) ++(whole ? rows.crossing : rows.splitting);
    if (parts.size() == 1 && !whole) rows.narrow.insert(parts.begin()->first);
  }
  return rows;
}

// Describes the cost of shard groups across islands: the smallest network bandwidth of a rank
// compared with the bandwidth of the slowest island, in GB/s.
std::string slowdown(const Machine& machine) {
  std::optional<double> inside, outside;
  const auto least = [](std::optional<double>& sum, double value) {
    sum = std::min(sum.value_or(value), value);
  };
  for (const RankSite& site : machine.ranks) {
    const GpuView* const gpu = machine.gpu(site.gpu);
    if (gpu == nullptr) continue;
    if (gpu->island != nullptr && gpu->island->gpu_gbyte_s)
      least(inside, *gpu->island->gpu_gbyte_s);
    double network = 0;
    for (const NicView* nic : gpu->used) network += nic->usable_gbyte_s.value_or(0);
    if (network > 0) least(outside, network);
  }
  std::string text = "all-gathers of these groups run at the speed between islands";
  if (inside && outside)
    text += fmt::format(": {:.4g} instead of {:.4g} GB/s per GPU", *outside, *inside);
  return text;
}

void shard_not_island(const Machine& machine, CheckResult& result) {
  if (machine.plan == nullptr || machine.ranks.empty()) return;
  const Rows rows = look_at_rows(machine);
  if (!rows.known) return result.not_checked("no rank is in a known island of several GPUs");
  result.looked();
  const auto& said = machine.plan->findings;
  const bool crossing_said = std::ranges::any_of(
      said, [](const Finding& finding) { return finding.id == "mesh_crosses_islands"; });
  if (crossing_said) return result.said_elsewhere();
  if (rows.crossing + rows.splitting > 0)
    result.add(
        std::vector<Subject>{},
        {rows.splitting > 0 ? warning : info,
         fmt::format("groups that cross islands: {} of {}; one group spans up to {} islands",
                     rows.crossing + rows.splitting, plural(rows.all, "shard group"), rows.islands),
         slowdown(machine),
         "shard inside the islands unless the model does not fit there: atoll-topo --mesh "
         "plans the mesh"});
  if (!rows.narrow.empty())
    result.add(std::vector<Subject>{}, {info,
                                        fmt::format("the shard axis of {} ranks covers only a part "
                                                    "of {}",
                                                    machine.plan->shard * machine.plan->tensor,
                                                    plural(rows.narrow.size(), "island")),
                                        "each GPU holds a larger share of the state than it must",
                                        "shard over whole islands: atoll-topo --mesh plans the "
                                        "mesh"});
}

// A property that should be equal on all hosts of a job.
struct Feature {
  std::string_view what;
  Severity severity;
  std::string (*of)(const HostView&);  // returns the host's value; "" when unknown
};

std::string models_of(const HostView& host) {
  std::set<std::string_view> models;
  for (const GpuView* gpu : host.gpus)
    if (!(*gpu)->model.empty()) models.insert((*gpu)->model);
  return fmt::format("{}", fmt::join(models, ", "));
}

std::string rates_of(const HostView& host) {
  std::set<double> rates;
  for (const NicView* nic : host.nics)
    if (nic->is_rdma && nic->may_be_active && (*nic)->rate_gbit_s)
      rates.insert(*(*nic)->rate_gbit_s);
  return rates.empty() ? "" : fmt::format("{} Gbit/s", fmt::join(rates, ", "));
}

std::string rdma_ports_of(const HostView& host) {
  return std::to_string(std::ranges::count_if(host.nics, &NicView::is_rdma));
}

constexpr Feature features[] = {
    {"GPUs", warning, [](const HostView& host) { return std::to_string(host.gpus.size()); }},
    {"models", warning, models_of},
    {"RDMA ports", warning, rdma_ports_of},
    {"rates", warning, rates_of},
    {"driver", warning,
     [](const HostView& host) { return std::string(host[fact::driver_version]); }},
    {"kernel", info, [](const HostView& host) { return std::string(host[fact::kernel_release]); }},
    {"cores", info,
     [](const HostView& host) {
       return host->host_cores > 0 ? std::to_string(host->host_cores) : "";
     }},
};

void hosts_differ(const Machine& machine, CheckResult& result) {
  for (const Feature& feature : features) {
    Census<std::string> census;
    std::vector<std::string> values;
    for (const HostView& host : machine.hosts) {
      values.push_back(feature.of(host));
      if (!values.back().empty()) census.add(values.back());
    }
    if (census.size() < 2) continue;
    result.looked();
    const auto& [usual, count] = census.majority();
    for (std::size_t host = 0; host < values.size(); ++host)
      if (!values[host].empty() && values[host] != usual)
        result.add(machine.hosts[host],
                   {feature.severity,
                    fmt::format("hosts differ in {}: {} on this host, but {} on {}", feature.what,
                                values[host], usual, plural(count, "other host"))});
  }
}

constexpr std::string_view no_job = "this is not a job: there are no ranks";

constexpr CheckRow ranks_rows[] = {
    {"ranks_share_gpu", "Ranks share no GPU", ranks_share_gpu, no_job,
     "the ranks share the GPU's memory and time, and NCCL refuses two ranks on one GPU",
     "start one rank per GPU, each with its own CUDA_VISIBLE_DEVICES (Slurm: --gpus-per-task=1; "
     "Open MPI sets OMPI_COMM_WORLD_LOCAL_RANK)"},
    {"rank_off_socket", "Ranks run on their GPU's socket", rank_off_socket, no_job,
     "all traffic between the process and its GPU crosses the link between the sockets",
     "bind ranks where their GPUs are: mpirun --map-by ppr:N:numa --bind-to numa; srun "
     "--gpu-bind=closest; or numactl --cpunodebind=N --membind=N"},
    {"ranks_share_core", "Ranks share no cores", ranks_share_core, no_job,
     "the ranks take turns on their cores, and each waits for the others in every collective",
     "give each rank its own cores: mpirun --map-by ppr:N:numa:PE=CORES --bind-to core; srun "
     "--cpus-per-task=CORES --cpu-bind=cores"},
    {"shard_not_island", "Shard groups match islands", shard_not_island, "no mesh"},
    {"hosts_differ", "All hosts are alike", hosts_differ, "only one host",
     "a synchronous job runs at the pace of its slowest host",
     "leave the host out of the job, or make it like the others"},
};

}  // namespace

const std::span<const CheckRow> rank_checks(ranks_rows);

}  // namespace atoll_v1::atoll::doctor

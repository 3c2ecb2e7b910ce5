// Assigns hosts and GPUs to ranks, by host or from the environments of their processes.
//
// A *device* is what CUDA or HIP numbers: a GPU or an instance of one. Steps of resolve_ranks() for
// each host:
//   1. sort the host's devices by bus id, leave out those that control groups hide, and number the
//      rest from 0. This is CUDA_DEVICE_ORDER=PCI_BUS_ID; CUDA's default order, fastest first, is
//      equal when all GPUs are alike;
//   2. apply CUDA_VISIBLE_DEVICES as the CUDA programming guide describes: an entry is a number,
//      "GPU-" with a unique prefix of a UUID, or the UUID of a MIG instance. The first entry that
//      is none of these, or names a device again, hides itself and all later entries;
//   3. ranks of a host that see the same devices take one each, by local rank. A rank that sees a
//      single device uses it, even if other ranks see it too.
// A UUID that several GPUs of a host share identifies none of them; anonymized files repeat UUIDs.
#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>

#include "atoll/mesh_plan.hpp"
#include "facts.hpp"
#include "mesh/mesh_sites.hpp"
#include "parse_number.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

struct Device {
  const TopologyGpu* gpu = nullptr;
  std::string partition;
  friend auto operator<=>(const Device&, const Device&) = default;
};
using Devices = std::vector<Device>;

// Normalizes a bus id: "0000:1B:00.0" and "1b:00.0" -> "00000000:1b:00.0".
std::string whole_busid(std::string_view busid) {
  constexpr std::size_t domain = 8, rest = sizeof(":1b:00.0") - 1;
  std::string whole = lower_case(trimmed(busid));
  if (whole.size() == rest - 1) whole.insert(0, ":");
  return whole.size() < domain + rest ? std::string(domain + rest - whole.size(), '0') + whole
                                      : whole;
}

// CUDA uses only the first MIG instance of a GPU. HIP numbers all instances of a partitioned GPU.
void add_devices(const TopologyGpu& gpu, Devices& devices) {
  if (gpu.partitions.empty()) {
    devices.push_back({&gpu, ""});
  } else if (gpu.partitions.front().starts_with("MIG-") ||
             get_fact(gpu.facts, fact::mig) == "yes") {
    devices.push_back({&gpu, gpu.partitions.front()});
  } else {
    for (const std::string& partition : gpu.partitions) devices.push_back({&gpu, partition});
  }
}

// The GPUs of a host that control groups allow a process to use.
class HostDevices {
 public:
  HostDevices(const std::vector<const TopologyGpu*>& gpus,
              const std::vector<std::string>& allowed_busids) {
    std::set<std::string> allowed;
    for (const std::string& busid : allowed_busids) allowed.insert(whole_busid(busid));
    for (const TopologyGpu* gpu : gpus)
      if (allowed.empty() || allowed.contains(whole_busid(gpu->busid))) gpus_.push_back(gpu);
    std::ranges::stable_sort(gpus_, {}, [](const TopologyGpu* gpu) { return gpu->busid; });
    for (const TopologyGpu* gpu : gpus_) add_devices(*gpu, all_);
  }

  const Devices& all() const { return all_; }

  Devices visible(std::string_view list) const {
    Devices devices;
    while (true) {
      const auto comma = list.find(',');
      const auto device = find(trimmed(list.substr(0, comma)));
      if (!device || std::ranges::find(devices, *device) != devices.end()) return devices;
      devices.push_back(*device);
      if (comma == std::string_view::npos) return devices;
      list.remove_prefix(comma + 1);
    }
  }

 private:
  std::optional<Device> find(std::string_view entry) const {
    if (entry.starts_with("MIG-")) return find_instance(entry);
    if (entry.starts_with("GPU-")) {
      const TopologyGpu* gpu = find_gpu(entry);
      if (gpu == nullptr) return std::nullopt;
      return *std::ranges::find(all_, gpu, &Device::gpu);
    }
    const auto number = parse_number<std::size_t>(entry);
    return number && *number < all_.size() ? std::optional(all_[*number]) : std::nullopt;
  }

  // Finds the GPU whose UUID has this prefix; null if none or several have it.
  const TopologyGpu* find_gpu(std::string_view prefix) const {
    const std::string wanted = lower_case(prefix);
    const TopologyGpu* found = nullptr;
    for (const TopologyGpu* gpu : gpus_) {
      if (!lower_case(gpu->uuid).starts_with(wanted)) continue;
      if (found != nullptr) return nullptr;
      found = gpu;
    }
    return found;
  }

  // Finds "MIG-UUID", or "MIG-GPU-UUID/1/0", the form of drivers before 470, which names the GPU
  // too.
  std::optional<Device> find_instance(std::string_view entry) const {
    std::optional<Device> found;
    for (const TopologyGpu* gpu : gpus_)
      for (const std::string& partition : gpu->partitions)
        if (lower_case(partition) == lower_case(entry)) {
          if (found) return std::nullopt;
          found = Device{gpu, partition};
        }
    if (found || !entry.starts_with("MIG-GPU-")) return found;
    const std::string_view uuid = entry.substr(4);
    const TopologyGpu* gpu = find_gpu(uuid.substr(0, uuid.find('/')));
    return gpu == nullptr ? std::nullopt : std::optional(Device{gpu, std::string(entry)});
  }

  std::vector<const TopologyGpu*> gpus_;
  Devices all_;
};

// Assigns devices to the ranks of one host.
class HostRanks {
 public:
  explicit HostRanks(const std::vector<const TopologyGpu*>& gpus) : gpus_(gpus) {}

  void add(std::size_t number, const RankEnvironment& rank) {
    const auto [at, is_new] = hosts_.try_emplace(rank.allowed_busids, gpus_, rank.allowed_busids);
    const HostDevices& host = at->second;
    users_[rank.has_visible ? host.visible(rank.visible) : host.all()].push_back(
        {rank.local_rank, number});
  }

  void resolve(std::vector<RankSite>& sites) {
    for (auto& [devices, ranks] : users_) {
      std::ranges::sort(ranks);
      for (std::size_t position = 0; position < ranks.size(); ++position) {
        const std::size_t at = devices.size() == 1 ? 0 : position;
        if (at >= devices.size()) continue;
        RankSite& site = sites[ranks[position].second];
        site.gpu = devices[at].gpu->id;
        site.partition = devices[at].partition;
      }
    }
  }

 private:
  std::vector<const TopologyGpu*> gpus_;
  // Maps the bus ids that control groups allow to a rank to the devices that the rank may use.
  std::map<std::vector<std::string>, HostDevices> hosts_;
  // Maps a list of visible devices to the ranks that see it, as pairs of local rank and index.
  std::map<Devices, std::vector<std::pair<int, std::size_t>>> users_;
};

// Maps each host's id to its GPUs. The keys refer to strings in the topology.
using GpusByHost = std::unordered_map<std::string_view, std::vector<const TopologyGpu*>>;

GpusByHost gpus_by_host(const Topology& topology) {
  GpusByHost hosts;
  for (const TopologyGpu& gpu : topology.gpus) hosts[gpu.host].push_back(&gpu);
  return hosts;
}

}  // namespace

std::vector<RankSite> resolve_ranks(const Topology& topology,
                                    const std::vector<RankEnvironment>& ranks) {
  GpusByHost gpus = gpus_by_host(topology);
  std::unordered_map<std::string_view, HostRanks> hosts;
  std::vector<RankSite> sites;
  sites.reserve(ranks.size());
  for (const RankEnvironment& rank : ranks) {
    sites.push_back(
        {.host = rank.host, .gpu = "", .partition = "", .cpus = rank.cpus, .numa = rank.numa});
    hosts.try_emplace(rank.host, gpus[rank.host]).first->second.add(sites.size() - 1, rank);
  }
  for (auto& [host, members] : hosts) members.resolve(sites);
  return sites;
}

std::vector<RankSite> assign_gpus(const Topology& topology, const std::vector<std::string>& hosts) {
  GpusByHost gpus = gpus_by_host(topology);
  std::unordered_map<std::string_view, std::size_t> given;  // number of placed ranks, by host
  std::vector<RankSite> sites;
  sites.reserve(hosts.size());
  for (const std::string& host : hosts) {
    RankSite site{.host = host, .gpu = ""};
    const std::vector<const TopologyGpu*>& here = gpus[host];
    if (const std::size_t next = given[host]++; next < here.size()) site.gpu = here[next]->id;
    sites.push_back(std::move(site));
  }
  return sites;
}

std::vector<RankSite> fill_hosts(const Topology& topology, int count) {
  constexpr int most_ranks = 1'000'000;
  if (count < 0 || count > most_ranks)
    refuse("the number of ranks, {}, is not between 0 and {}", count, most_ranks);
  if (topology.hosts.empty()) refuse("the topology has no host");
  std::vector<std::string> hosts;
  if (topology.gpus.empty()) {
    if (count == 0) refuse("the topology has no GPUs: give the number of ranks");
    const std::size_t ranks = static_cast<std::size_t>(count), size = topology.hosts.size();
    for (std::size_t host = 0; host < size; ++host)
      hosts.resize(ranks * (host + 1) / size, topology.hosts[host].id);
    return assign_gpus(topology, hosts);
  }
  const std::size_t ranks = count == 0 ? topology.gpus.size() : static_cast<std::size_t>(count);
  if (ranks > topology.gpus.size())
    refuse("{} do not fit on {}", plural(ranks, "rank"), plural(topology.gpus.size(), "GPU"));
  GpusByHost gpus = gpus_by_host(topology);
  hosts.reserve(topology.gpus.size());
  for (const TopologyHost& host : topology.hosts)
    hosts.insert(hosts.end(), gpus[host.id].size(), host.id);
  hosts.resize(ranks);
  return assign_gpus(topology, hosts);
}

}  // namespace atoll_v1::atoll

// Reads GPUs, NVLinks, fabric and health from NVML, NVIDIA's management library.
//
// GPU ids follow NVML's numbers. NVML shows only the GPUs that this process may use, and reports
// the peer of each link: a GPU, a switch or a processor. hwloc's links come from NVML as well,
// through a matrix that is missing or wrong on many machines, so NVML wins where the two differ.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>

#include "facts.hpp"
#include "gpu_models.hpp"
#include "sources/nvml_reading.hpp"
#include "sources/pci_address.hpp"
#include "sources/small_file.hpp"
#include "sources/source.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

// Without persistence mode the driver must start each GPU first, which takes seconds for each.
constexpr std::chrono::seconds patience{90};

constexpr std::string_view fast_type = "nvlink";
constexpr std::string_view processor_type = "nvlink_cpu";

using Pair =
    std::pair<std::string, std::string>;  // ids of a GPU and of its peer, which may be a switch

struct ByNumber {
  bool operator()(const Pair& a, const Pair& b) const noexcept {
    if (a.first != b.first) return natural_less(a.first, b.first);
    return natural_less(a.second, b.second);
  }
};
using Counts = std::map<Pair, int, ByNumber>;

Pair ordered(const std::string& a, const std::string& b) {
  return natural_less(b, a) ? Pair(b, a) : Pair(a, b);
}

class NvmlView {
 public:
  NvmlView(const LiveRequest& request, NvmlReading reading, TopologyHost& host, Topology& topology)
      : request_(request), reading_(std::move(reading)), host_(host), topology_(topology) {}

  void apply() {
    set_fact(host_.facts, fact::driver_version, reading_.driver_version);
    if (!reading_.remark.empty())
      set_fact(host_.facts, fmt::format("{}nvml", fact::source_prefix), "NVML: " + reading_.remark);
    for (const NvmlGpu& gpu : reading_.gpus) describe(gpu);
    hide_others();
    number_gpus();
    for (const NvmlGpu& gpu : reading_.gpus) count_links(gpu);
    state_links();
  }

 private:
  bool is_here(const TopologyGpu& gpu) const { return gpu.host == host_.id; }

  TopologyGpu* find(const NvmlGpu& seen) {
    for (TopologyGpu& gpu : topology_.gpus) {
      if (!is_here(gpu)) continue;
      if (seen.busid.empty() ? gpu.index == seen.index : gpu.busid == seen.busid) return &gpu;
    }
    return nullptr;
  }

  void describe(const NvmlGpu& seen) {
    TopologyGpu* gpu = find(seen);
    if (gpu == nullptr) {
      TopologyGpu added;
      added.host = host_.id;
      added.busid = seen.busid;
      added.id = free_id();
      topology_.gpus.push_back(std::move(added));
      gpu = &topology_.gpus.back();
    }
    gpu->index = seen.index;
    if (!seen.uuid.empty()) gpu->uuid = seen.uuid;
    if (!seen.model.empty()) gpu->model = seen.model;
    if (!seen.partitions.empty()) gpu->partitions = seen.partitions;
    for (const auto& [name, value] : seen.facts) gpu->facts.insert_or_assign(name, value);
  }

  std::string free_id() const {
    for (std::size_t number = topology_.gpus.size();; ++number)
      if (std::string id = fmt::format("{}/gpu{}", host_.id, number); by_id(id) == nullptr)
        return id;
  }

  bool is_nvidia(const TopologyGpu& gpu) const {
    if (const auto device = get_fact(gpu.facts, fact::pci_device); !device.empty())
      return device.starts_with("10de:");
    const auto folder = pci_folder(request_.sysfs, gpu.busid);
    return !folder.empty() && read_number(folder / "vendor") == 0x10de;
  }

  // True under a job scheduler. It may show this process only its own GPUs, so a GPU that NVML does
  // not show may belong to another rank and must stay in the topology.
  static bool are_shared_out() {
    return std::ranges::any_of(std::array{"SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID", "LSB_JOBID"},
                               [](const char* name) { return std::getenv(name) != nullptr; });
  }

  // Removes GPUs that this process may not use: a container shows the PCI bus of its host, but not
  // all of the host's GPUs. Does nothing when a GPU failed to answer, because such a GPU cannot be
  // distinguished from a hidden one.
  void hide_others() {
    if (reading_.gpus.empty() || !reading_.all_gpus_answered || are_shared_out()) return;
    std::set<std::string_view> shown;
    for (const NvmlGpu& gpu : reading_.gpus) shown.insert(gpu.busid);
    if (shown.contains("")) return;
    std::string hidden;
    std::erase_if(topology_.gpus, [&](const TopologyGpu& gpu) {
      if (!is_here(gpu) || shown.contains(gpu.busid) || !is_nvidia(gpu)) return false;
      hidden += (hidden.empty() ? "" : " ") + gpu.busid;
      std::erase_if(topology_.links,
                    [&](const TopologyLink& link) { return link.a == gpu.id || link.b == gpu.id; });
      std::erase_if(topology_.paths,
                    [&](const TopologyPath& path) { return path.a == gpu.id || path.b == gpu.id; });
      return true;
    });
    set_fact(host_.facts, fact::hidden_gpus, hidden);
  }

  // Renames GPUs after NVML's numbers if all GPUs have different numbers.
  void number_gpus() {
    std::set<int> numbers;
    std::size_t gpus = 0;
    for (const TopologyGpu& gpu : topology_.gpus)
      if (is_here(gpu)) {
        ++gpus;
        if (gpu.index >= 0) numbers.insert(gpu.index);
      }
    if (numbers.size() != gpus) return;
    std::map<std::string, std::string> renamed;
    for (TopologyGpu& gpu : topology_.gpus)
      if (is_here(gpu)) {
        std::string id = fmt::format("{}/gpu{}", host_.id, gpu.index);
        renamed[gpu.id] = id;
        gpu.id = std::move(id);
      }
    const auto rename = [&renamed](std::string& id) {
      if (const auto found = renamed.find(id); found != renamed.end()) id = found->second;
    };
    for (TopologyLink& link : topology_.links) rename(link.a), rename(link.b);
    for (TopologyPath& path : topology_.paths) rename(path.a), rename(path.b);
    std::ranges::stable_sort(topology_.gpus, {}, [this](const TopologyGpu& gpu) {
      return std::pair(!is_here(gpu), is_here(gpu) ? gpu.index : 0);
    });
  }

  const TopologyGpu* by_busid(const std::string& busid) const {
    const auto found = std::ranges::find_if(topology_.gpus, [&](const TopologyGpu& gpu) {
      return is_here(gpu) && !busid.empty() && gpu.busid == busid;
    });
    return found == topology_.gpus.end() ? nullptr : &*found;
  }

  // Drivers before R470 do not report the type of a peer. It is derived from the peer's PCI class
  // if possible.
  NvmlLink::Peer guess_peer(const NvmlLink& link) const {
    if (by_busid(link.busid) != nullptr) return NvmlLink::Peer::gpu;
    const auto folder = pci_folder(request_.sysfs, link.busid);
    const long long pci_class = read_number(folder / "class").value_or(0) >> 8;
    if (pci_class == 0x0680) {
      return read_number(folder / "vendor") == 0x1014 ? NvmlLink::Peer::processor
                                                      : NvmlLink::Peer::network_switch;
    }
    return (pci_class >> 8) == 0x03 ? NvmlLink::Peer::gpu : NvmlLink::Peer::unknown;
  }

  void count_links(const NvmlGpu& seen) {
    const TopologyGpu* gpu = find(seen);
    if (gpu == nullptr) return;
    if (!links_are_known(seen, *gpu)) some_links_unseen_ = true;
    for (const NvmlLink& link : seen.links) {
      if (!link.is_active) continue;
      switch (link.peer == NvmlLink::Peer::unknown ? guess_peer(link) : link.peer) {
        case NvmlLink::Peer::gpu:
          count_pair(*gpu, link.busid);
          break;
        case NvmlLink::Peer::network_switch:
          ++fast_[{gpu->id, fmt::format("{}/nvswitch0", host_.id)}];
          break;
        case NvmlLink::Peer::processor:
          ++processors_[{gpu->id,
                         fmt::format("{}/package{}", host_.id, std::max(0, gpu->package))}];
          break;
        case NvmlLink::Peer::unknown:
          some_links_unseen_ = true;
          break;
      }
    }
  }

  // False if NVML reports no links although the data sheet of the model has some, as for a virtual
  // GPU. Then a pair of GPUs without a link in NVML may have one.
  static bool links_are_known(const NvmlGpu& seen, const TopologyGpu& gpu) {
    if (!seen.links_were_read) return false;
    const GpuModel* model = find_gpu_model(std::string_view(gpu.model));
    return !seen.links.empty() || model == nullptr || model->links == 0;
  }

  void count_pair(const TopologyGpu& gpu, const std::string& busid) {
    const TopologyGpu* peer = by_busid(busid);
    if (peer != nullptr && peer->id != gpu.id) {
      ++sides_[{gpu.id, peer->id}];
      int& count = fast_[ordered(gpu.id, peer->id)];
      count = std::max(count, sides_[{gpu.id, peer->id}]);
      return;
    }
    // The peer of the link is hidden from this process, or this process sees other bus ids than the
    // driver.
    some_links_unseen_ = true;
    if (peer == nullptr) ++unseen_[{gpu.id, fmt::format("{}/unseen-{}", host_.id, busid)}];
  }

  bool is_own(const TopologyLink& link) const {
    return std::ranges::any_of(topology_.gpus, [&](const TopologyGpu& gpu) {
      return is_here(gpu) && (link.a == gpu.id || link.b == gpu.id);
    });
  }

  // Counts the links that other sources reported, with all switches as one, as NVML sees them.
  Counts stated_counts() const {
    Counts counts;
    for (const TopologyLink& link : topology_.links) {
      if (link.type != fast_type || !is_own(link)) continue;
      const bool a = by_id(link.a) != nullptr, b = by_id(link.b) != nullptr;
      const std::string network = fmt::format("{}/nvswitch0", host_.id);
      counts[a && b ? ordered(link.a, link.b) : Pair(a ? link.a : link.b, network)] += link.count;
    }
    return counts;
  }

  const TopologyGpu* by_id(const std::string& id) const {
    const auto found = std::ranges::find(topology_.gpus, id, &TopologyGpu::id);
    return found == topology_.gpus.end() ? nullptr : &*found;
  }

  void state_links() {
    add_links(unseen_, "nvlink_unseen");
    if (fast_.empty() && (some_links_unseen_ || reading_.gpus.empty())) return;
    const Counts stated = stated_counts();
    const bool is_confirmed = host_.gpu_links == IslandState::known && stated == fast_;
    if (!is_confirmed) {
      if (host_.gpu_links == IslandState::known) report_conflicts(stated);
      std::erase_if(topology_.links, [this](const TopologyLink& link) {
        return link.type == fast_type && is_own(link);
      });
      add_links(fast_, fast_type);
      host_.gpu_links = fast_.empty() ? IslandState::none : IslandState::known;
    }
    const bool has_processor_links = std::ranges::any_of(
        topology_.links,
        [this](const TopologyLink& link) { return link.type == processor_type && is_own(link); });
    if (!has_processor_links) add_links(processors_, processor_type);
  }

  void add_links(const Counts& counts, std::string_view type) {
    for (const auto& [pair, count] : counts)
      topology_.links.push_back(
          {.a = pair.first, .b = pair.second, .type = std::string(type), .count = count});
  }

  // True if the rate of one NVLink of the GPU is known. hwloc reports bandwidths, which can be
  // compared with numbers of links only by this rate.
  bool has_rate(const std::string& id) const {
    const TopologyGpu* gpu = by_id(id);
    return gpu != nullptr && find_gpu_model(std::string_view(gpu->model)) != nullptr;
  }

  void report_conflicts(const Counts& stated) {
    // For each pair of ends, the numbers of links that NVML and hwloc report.
    std::map<Pair, std::pair<int, int>, ByNumber> pairs;
    for (const auto& [pair, count] : fast_) pairs[pair].first = count;
    for (const auto& [pair, count] : stated) pairs[pair].second = count;
    for (const auto& [pair, counts] : pairs) {
      if (counts.first == counts.second || !has_rate(pair.first)) continue;
      topology_.conflicts.push_back({.subject = fmt::format("{} - {}", pair.first, pair.second),
                                     .member = "links",
                                     .believed = fmt::format("{} (NVML)", counts.first),
                                     .contradiction = fmt::format("{} (hwloc)", counts.second)});
    }
  }

  const LiveRequest& request_;
  NvmlReading reading_;
  TopologyHost& host_;
  Topology& topology_;
  Counts fast_, processors_, unseen_;
  Counts sides_;  // number of links from one GPU to another, as the first GPU reports them
  bool some_links_unseen_ = false;
};

}  // namespace

void nvml(const LiveRequest& request, Topology& topology) {
  const auto host = std::ranges::find(topology.hosts, request.host_id, &TopologyHost::id);
  if (host == topology.hosts.end()) return;
  NvmlReading reading = read_nvml(request.nvml, patience);
  if (!reading.failure.empty()) {
    set_fact(host->facts, fmt::format("{}nvml", fact::source_prefix), reading.failure);
    return;
  }
  NvmlView(request, std::move(reading), *host, topology).apply();
}

}  // namespace atoll_v1::atoll::topology_sources

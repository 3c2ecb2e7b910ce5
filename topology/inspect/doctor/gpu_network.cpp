// Checks of the paths between GPUs and NICs: GPUDirect, distance, shared NICs, rails.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "inspect/doctor/check.hpp"
#include "path_level.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

void look_at_modules(const HostView& host, CheckResult& result) {
  const std::string_view peermem = host[fact::peermem], dma_buf = host[fact::dma_buf];
  if (peermem == "yes" || dma_buf == "yes") return result.looked();
  if (peermem.empty()) return result.lacks(host, fact::peermem);
  if (dma_buf.empty()) return result.lacks(host, fact::dma_buf);
  result.add(
      host,
      {error, "nvidia_peermem is not loaded, and GPU memory cannot be exported as dma-buf", "",
       "modprobe nvidia_peermem (and add it to /etc/modules-load.d), or use the open kernel "
       "modules of the driver with Linux 5.12 or newer"});
}

void look_at_setting(const HostView& host, CheckResult& result) {
  const Setting setting = setting_of(host, "NCCL_NET_GDR_LEVEL");
  if (setting.value == "LOC" || setting.value == "0")
    result.add(host, {error,
                      fmt::format("NCCL_NET_GDR_LEVEL is {} ({}), which turns GPUDirect off",
                                  setting.value, setting.where),
                      "", "unset NCCL_NET_GDR_LEVEL"});
}

void gpudirect(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    bool has_nics = false;
    for (const NicView* nic : host.nics) {
      if (host.gpus.empty() || !nic->is_rdma || !nic->may_be_active) continue;
      has_nics = true;
      const std::string_view gdr = (*nic)[fact::gdr];
      if (!gdr.empty()) result.looked();
      if (gdr == "no")
        result.add(*nic, {warning, "NCCL's topology file shows the NIC without GPUDirect", "",
                          "modprobe nvidia_peermem; then let NCCL write the file again "
                          "(NCCL_TOPO_DUMP_FILE)"});
    }
    if (!has_nics) continue;
    look_at_modules(host, result);
    look_at_setting(host, result);
  }
}

// True if the GPU and the NIC are on different sockets; empty when the topology does not show their
// sockets. SYS, if a source states it, counts as such, though it may join nodes of one socket.
std::optional<bool> on_other_socket(const TopologyGpu& gpu, const TopologyNic& nic,
                                    const TopologyHost& host, std::optional<PathLevel> stated) {
  if (gpu.package >= 0 && nic.package >= 0) return gpu.package != nic.package;
  if (host.packages == 1) return false;
  if (stated) return *stated == PathLevel::sys;
  if (gpu.numa < 0 || nic.numa < 0) return std::nullopt;
  if (gpu.numa == nic.numa) return false;
  // If each package has one NUMA node, devices on different nodes are on different packages.
  if (host.numa_nodes == host.packages && host.packages > 0) return true;
  return std::nullopt;
}

void nic_far(const Machine& machine, CheckResult& result) {
  const PathLevels levels(machine.topology);
  for (const HostView& host : machine.hosts)
    for (const GpuView* view : host.gpus) {
      if (view->used.empty()) {
        result.not_checked("no NIC that a GPU could use");
        continue;
      }
      const TopologyGpu& gpu = *view->part;
      const TopologyNic& nic = *view->used.front()->part;
      const auto stated = levels.stated(gpu.id, nic.id);
      const auto far = on_other_socket(gpu, nic, *host.part, stated);
      if (!far) {
        result.not_checked("no source shows the sockets of GPUs and NICs");
        continue;
      }
      result.looked();
      if (!*far) continue;
      const bool is_stated = stated && (gpu.package < 0 || nic.package < 0);
      result.add(
          *view,
          {warning, fmt::format("the nearest NIC that the GPU can use, {}, is on another socket{}",
                                nic.name, is_stated ? " or NUMA node (SYS)" : "")});
    }
}

// Lists the names of devices without their hosts: "gpu0 and gpu2".
std::string local_names(const std::vector<Subject>& subjects) {
  std::vector<std::string> names;
  names.reserve(subjects.size());
  for (const Subject& subject : subjects)
    names.push_back(subject.id.substr(subject.id.rfind('/') + 1));
  std::ranges::sort(names, natural_less);
  return enumerate(names);
}

// A NIC, or all ports of one adapter, with the GPUs that use it.
struct Share {
  std::vector<const NicView*> nics;
  std::vector<const GpuView*> gpus;
};

std::vector<Share> shares_of(const Machine& machine) {
  // Maps a host and one of its adapters, or a NIC without an adapter, to a position in `shares`.
  using Key = std::pair<std::string_view, std::string_view>;
  std::map<Key, std::size_t> numbers;
  std::vector<Share> shares;
  for (const GpuView& gpu : machine.gpus)
    for (const NicView* nic : gpu.used) {
      const TopologyNic& part = *nic->part;
      const Key key = part.adapter.empty() ? Key("", part.id) : Key(part.host, part.adapter);
      const auto [at, is_new] = numbers.try_emplace(key, shares.size());
      if (is_new) shares.emplace_back();
      Share& share = shares[at->second];
      if (std::ranges::find(share.nics, nic) == share.nics.end()) share.nics.push_back(nic);
      if (share.gpus.empty() || share.gpus.back() != &gpu) share.gpus.push_back(&gpu);
    }
  return shares;
}

void nic_shared(const Machine& machine, CheckResult& result) {
  for (const Share& share : shares_of(machine)) {
    result.looked();
    if (share.gpus.size() < 2) continue;
    double gbyte_s = 0;
    for (const NicView* nic : share.nics) gbyte_s += nic->usable_gbyte_s.value_or(0);
    std::string cost;
    if (std::ranges::all_of(share.nics, [](auto* nic) { return nic->usable_gbyte_s.has_value(); }))
      cost = fmt::format("each GPU gets {:.3g} of {:.3g} GB/s when all of them send at once",
                         gbyte_s / static_cast<double>(share.gpus.size()), gbyte_s);
    std::vector<Subject> gpus, nics;
    append(gpus, share.gpus);
    append(nics, share.nics);
    // The evidence of a finding names the devices, because the subjects of a combined finding do
    // not show which GPU shares which NIC.
    const std::string evidence = fmt::format(
        "{} ({}) share {} ({})", plural(gpus.size(), "GPU"), local_names(gpus),
        nics.size() == 1 ? "one NIC" : fmt::format("{} ports of one adapter", nics.size()),
        local_names(nics));
    nics.insert(nics.end(), gpus.begin(), gpus.end());
    result.add(nics, {info, evidence, cost});
  }
}

void rails_assumed(const Machine& machine, CheckResult& result) {
  if (machine.hosts.size() < 2)
    return result.not_checked("only one host: rails connect several hosts");
  std::set<const NicView*> used;
  std::size_t rails = 0;
  for (const HostView& host : machine.hosts) {
    std::size_t rails_here = 0;  // number of rails on this host; GPUs with one NIC share a rail
    for (const GpuView* gpu : host.gpus) {
      const std::size_t before = used.size();
      used.insert(gpu->used.begin(), gpu->used.end());
      rails_here += used.size() > before ? 1 : 0;
    }
    rails = std::max(rails, rails_here);
  }
  if (used.empty()) return;
  result.looked();
  const auto assumed =
      std::ranges::count_if(used, [](const NicView* nic) { return (*nic)[fact::leaf].empty(); });
  if (assumed > 0)
    result.add(
        std::vector<Subject>{},
        {info, fmt::format("the leaf switches of {} of {} are unknown; {} per host are assumed by "
                           "position",
                           assumed, plural(used.size(), "NIC"), plural(rails, "rail"))});
}

constexpr CheckRow gpu_network_rows[] = {
    {"gpudirect", "NICs access GPU memory directly", gpudirect, "no host with GPUs and RDMA NICs",
     "data between GPUs and NICs is copied through CPU memory, and NCCL prints no warning"},
    {"nic_far", "GPUs have a NIC on their socket", nic_far, "no GPUs",
     "traffic of the GPU crosses the link between the sockets, and NCCL does not use GPUDirect "
     "over this link",
     "bring up or plug in a NIC on the GPU's own socket (atoll-topo shows which ports are down)"},
    {"nic_shared", "GPUs share no NIC", nic_shared, "no NIC that a GPU could use"},
    {"rails_assumed", "The leaf switches of the rails are known", rails_assumed,
     "no NIC that a GPU could use",
     "if NICs at the same position in their hosts are on different leaf switches, replicate groups "
     "send across the spine",
     "write the fabric to a file (ibnetdiscover > fabric.txt) and use it: --fabric fabric.txt"},
};

}  // namespace

const std::span<const CheckRow> gpu_network_checks(gpu_network_rows);

}  // namespace atoll_v1::atoll::doctor

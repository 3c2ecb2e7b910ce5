// Checks of the paths between GPUs and NICs: GPUDirect, distance, shared NICs, rails.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "inspect/doctor/check.hpp"
#include "path_level.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

constexpr auto gpudirect_cost =
    "data between GPUs and NICs is copied through host memory, and NCCL prints no warning";

void look_at_modules(const HostView& view, CheckResult& result) {
  const std::string_view peermem = get_fact(view.host->facts, fact::peermem);
  const std::string_view dma_buf = get_fact(view.host->facts, fact::dma_buf);
  if (peermem == "yes" || dma_buf == "yes") return result.looked();
  if (peermem.empty()) return result.lacks(*view.host, fact::peermem);
  if (dma_buf.empty()) return result.lacks(*view.host, fact::dma_buf);
  result.add(*view.host,
             {error, "nvidia_peermem is not loaded, and GPU memory cannot be exported as dma-buf",
              gpudirect_cost,
              "modprobe nvidia_peermem (and add it to /etc/modules-load.d), or use the open kernel "
              "modules of the driver with Linux 5.12 or newer"});
}

void look_at_setting(const HostView& view, CheckResult& result) {
  const Setting setting = setting_of(*view.host, "NCCL_NET_GDR_LEVEL");
  if (setting.value != "LOC" && setting.value != "0") return;
  result.add(*view.host, {error,
                          fmt::format("NCCL_NET_GDR_LEVEL is {} ({}), which turns GPUDirect off",
                                      setting.value, setting.where),
                          gpudirect_cost, "unset NCCL_NET_GDR_LEVEL"});
}

void look_at_nic(const Machine& machine, std::size_t nic, CheckResult& result) {
  const std::string_view gdr = machine.nic_facts[fact::gdr][nic];
  if (!gdr.empty()) result.looked();
  if (gdr != "no") return;
  result.add(machine.nic(nic),
             {warning, "NCCL's topology file shows the NIC without GPUDirect", gpudirect_cost,
              "modprobe nvidia_peermem; then let NCCL write the file again (NCCL_TOPO_DUMP_FILE)"});
}

void gpudirect(const Machine& machine, CheckResult& result) {
  for (const HostView& view : machine.hosts) {
    if (view.gpus.empty()) continue;
    bool has_nics = false;
    for (const std::size_t nic : view.nics) {
      if (!machine.is_rdma[nic] || !machine.may_be_active[nic]) continue;
      has_nics = true;
      look_at_nic(machine, nic, result);
    }
    if (!has_nics) continue;
    look_at_modules(view, result);
    look_at_setting(view, result);
  }
}

// True if the GPU and the NIC are on different sockets; empty when the topology does not show their
// sockets. A stated SYS is a path over the link between sockets, or between NUMA nodes of a socket.
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
  for (const HostView& view : machine.hosts)
    for (const std::size_t number : view.gpus) {
      const TopologyGpu& gpu = machine.gpu(number);
      if (machine.used[number].empty()) {
        result.not_checked("no NIC that a GPU could use");
        continue;
      }
      const TopologyNic& nic = machine.nic(machine.used[number].front());
      const auto stated = levels.stated(gpu.id, nic.id);
      const auto far = on_other_socket(gpu, nic, *view.host, stated);
      if (!far) {
        result.not_checked("no source shows the sockets of GPUs and NICs");
        continue;
      }
      result.looked();
      if (!*far) continue;
      const bool is_stated = stated && (gpu.package < 0 || nic.package < 0);
      result.add(gpu,
                 {warning,
                  fmt::format("the nearest NIC that the GPU can use, {}, is on another socket{}",
                              nic.name, is_stated ? " or NUMA node (SYS)" : ""),
                  "traffic of the GPU crosses the link between the sockets, and NCCL does not use "
                  "GPUDirect over this link",
                  "bring up or plug in a NIC on the GPU's own socket (atoll-topo shows which "
                  "ports are down)"});
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
  std::vector<std::size_t> nics, gpus;
  double gbyte_s = 0;
  bool known = true;
};

void nic_shared(const Machine& machine, CheckResult& result) {
  std::vector<std::size_t> share_of(machine.topology.nics.size(), nowhere);
  // Maps a host and one of its adapters to the adapter's position in `shares`.
  std::map<std::pair<std::size_t, std::string_view>, std::size_t> adapters;
  std::vector<Share> shares;
  const auto place = [&](std::size_t nic) {
    const std::string_view adapter = machine.nic(nic).adapter;
    share_of[nic] = shares.size();
    if (!adapter.empty())
      share_of[nic] =
          adapters.try_emplace({machine.nic_hosts[nic], adapter}, shares.size()).first->second;
    if (share_of[nic] == shares.size()) shares.emplace_back();
    Share& share = shares[share_of[nic]];
    share.nics.push_back(nic);
    share.known = share.known && machine.usable[nic].has_value();
    share.gbyte_s += machine.usable[nic].value_or(0);
  };
  for (std::size_t gpu = 0; gpu < machine.used.size(); ++gpu)
    for (const std::size_t nic : machine.used[gpu]) {
      if (share_of[nic] == nowhere) place(nic);
      std::vector<std::size_t>& gpus = shares[share_of[nic]].gpus;
      if (gpus.empty() || gpus.back() != gpu) gpus.push_back(gpu);
    }
  for (const Share& share : shares) {
    result.looked();
    if (share.gpus.size() < 2) continue;
    std::string cost;
    if (share.known)
      cost = fmt::format("each GPU gets {:.3g} of {:.3g} GB/s when all of them send at once",
                         share.gbyte_s / static_cast<double>(share.gpus.size()), share.gbyte_s);
    std::vector<Subject> gpus, nics;
    for (const std::size_t gpu : share.gpus) gpus.emplace_back(machine.gpu(gpu));
    for (const std::size_t nic : share.nics) nics.emplace_back(machine.nic(nic));
    // The evidence of a finding names the devices, because the subjects of a combined finding do
    // not show which GPU shares which NIC.
    const std::string evidence = fmt::format(
        "{} ({}) share {} ({})", plural(gpus.size(), "GPU"), local_names(gpus),
        nics.size() == 1 ? "one NIC" : fmt::format("{} ports of one adapter", nics.size()),
        local_names(nics));
    std::vector<Subject> subjects = std::move(nics);
    subjects.insert(subjects.end(), gpus.begin(), gpus.end());
    result.add(subjects, {info, evidence, cost});
  }
}

void rails_assumed(const Machine& machine, CheckResult& result) {
  if (machine.hosts.size() < 2)
    return result.not_checked("only one host: rails connect several hosts");
  const auto leaves = machine.nic_facts[fact::leaf];
  std::vector<bool> seen(machine.topology.nics.size());
  std::size_t used = 0, assumed = 0, rails = 0;
  for (const HostView& view : machine.hosts) {
    std::size_t rails_here = 0;  // number of rails on this host; GPUs with one NIC share a rail
    for (const std::size_t gpu : view.gpus) {
      const std::size_t before = used;
      for (const std::size_t nic : machine.used[gpu]) {
        if (seen[nic]) continue;
        seen[nic] = true;
        ++used;
        assumed += leaves[nic].empty() ? 1 : 0;
      }
      rails_here += used > before ? 1 : 0;
    }
    rails = std::max(rails, rails_here);
  }
  if (used == 0) return;
  result.looked();
  if (assumed == 0) return;
  result.add(
      std::vector<Subject>{},
      {info,
       fmt::format("the leaf switches of {} of {} are unknown; {} per host are assumed by position",
                   assumed, plural(used, "NIC"), plural(rails, "rail")),
       "if positions do not match leaf switches, replicate groups cross the spine",
       "write the fabric to a file (ibnetdiscover > fabric.txt) and use it: --fabric fabric.txt"});
}

constexpr CheckRow rows[] = {
    {"gpudirect", "NICs access GPU memory directly", gpudirect, "no host with GPUs and RDMA NICs"},
    {"nic_far", "GPUs have a NIC on their socket", nic_far, "no GPUs"},
    {"nic_shared", "GPUs share no NIC", nic_shared, "no NIC that a GPU could use"},
    {"rails_assumed", "The leaf switches of the rails are known", rails_assumed,
     "no NIC that a GPU could use"},
};

}  // namespace

const std::span<const CheckRow> gpu_network_checks(rows);

}  // namespace atoll_v1::atoll::doctor

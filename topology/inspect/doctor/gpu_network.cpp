// What lies between GPUs and NICs: GPUDirect, distance, shares, rails.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

// --- GPUDirect ---

constexpr auto gpudirect_cost =
    "data between GPUs and NICs is copied through host memory, and NCCL does not say so";

void look_at_modules(const HostView& view, Verdict& verdict) {
  const std::string_view peermem = get_fact(view.host->facts, fact::peermem);
  const std::string_view dma_buf = get_fact(view.host->facts, fact::dma_buf);
  if (peermem == "yes" || dma_buf == "yes") return verdict.looked();
  if (peermem.empty()) return verdict.lacks(*view.host, fact::peermem);
  if (dma_buf.empty()) return verdict.lacks(*view.host, fact::dma_buf);
  verdict.add(
      Subject(*view.host),
      {.severity = Severity::error,
       .evidence = "nvidia_peermem is not loaded, and GPU memory cannot be had as dma-buf",
       .consequence = gpudirect_cost,
       .fix = "modprobe nvidia_peermem (and add it to /etc/modules-load.d), or use the open "
              "kernel modules of the driver with Linux 5.12 or newer"});
}

void look_at_setting(const HostView& view, Verdict& verdict) {
  const Setting setting = setting_of(*view.host, "NCCL_NET_GDR_LEVEL");
  if (setting.value != "LOC" && setting.value != "0") return;
  verdict.add(Subject(*view.host), {.severity = Severity::error,
                                    .evidence = fmt::format("NCCL_NET_GDR_LEVEL is {} ({}): never",
                                                            setting.value, setting.where),
                                    .consequence = gpudirect_cost,
                                    .fix = "unset NCCL_NET_GDR_LEVEL"});
}

void look_at_nic(const Machine& machine, std::size_t nic, Verdict& verdict) {
  const std::string_view gdr = machine.nic_facts[fact::gdr][nic];
  if (!gdr.empty()) verdict.looked();
  if (gdr != "no") return;
  verdict.add(Subject(machine.nic(nic)),
              {.severity = Severity::warning,
               .evidence = "NCCL's own file says that the NIC has no GPUDirect",
               .consequence = gpudirect_cost,
               .fix = "modprobe nvidia_peermem; then let NCCL write the file again "
                      "(NCCL_TOPO_DUMP_FILE)"});
}

void gpudirect(const Machine& machine, Verdict& verdict) {
  bool any = false;
  for (const HostView& view : machine.hosts) {
    if (view.gpus.empty()) continue;
    bool has_nics = false;
    for (const std::size_t nic : view.nics) {
      if (!machine.is_rdma[nic] || !machine.may_be_active[nic]) continue;
      has_nics = true;
      look_at_nic(machine, nic, verdict);
    }
    if (!has_nics) continue;
    any = true;
    look_at_modules(view, verdict);
    look_at_setting(view, verdict);
  }
  if (!any) verdict.not_checked("no host with GPUs and RDMA NICs");
}

// --- distance ---

// Empty: nobody knows.
std::optional<bool> on_other_socket(const TopologyGpu& gpu, const TopologyNic& nic,
                                    const TopologyHost& host) {
  if (gpu.package >= 0 && nic.package >= 0) return gpu.package != nic.package;
  if (host.packages == 1) return false;
  if (gpu.numa < 0 || nic.numa < 0) return std::nullopt;
  if (gpu.numa == nic.numa) return false;
  // With one node a socket, nodes tell the sockets apart.
  if (host.numa_nodes == host.packages && host.packages > 0) return true;
  return std::nullopt;
}

void nic_far(const Machine& machine, Verdict& verdict) {
  if (machine.topology.gpus.empty()) return verdict.not_checked("no GPUs");
  for (const HostView& view : machine.hosts)
    for (const std::size_t number : view.gpus) {
      const TopologyGpu& gpu = machine.gpu(number);
      if (machine.used[number].empty()) {
        verdict.not_checked("no NIC that a GPU could use");
        continue;
      }
      const TopologyNic& nic = machine.nic(machine.used[number].front());
      const auto far = on_other_socket(gpu, nic, *view.host);
      if (!far) {
        verdict.not_checked("no source tells the sockets of GPUs and NICs");
        continue;
      }
      verdict.looked();
      if (!*far) continue;
      verdict.add(
          Subject(gpu),
          {.severity = Severity::warning,
           .evidence = fmt::format("the nearest NIC that it can use, {}, hangs on another "
                                   "socket",
                                   nic.name),
           .consequence = "its traffic crosses the link between the sockets, and NCCL does "
                          "not use GPUDirect over it",
           .fix = "bring up or plug in a NIC on the GPU's own socket (atoll-topo shows which "
                  "ports are down)"});
    }
}

// --- shares ---

// "gpu0 and gpu2", without their host.
std::string local_names(const std::vector<Subject>& subjects) {
  std::vector<std::string> names;
  names.reserve(subjects.size());
  for (const Subject& subject : subjects)
    names.push_back(subject.id.substr(subject.id.rfind('/') + 1));
  std::ranges::sort(names, natural_less);
  return enumerate(names);
}

struct Share {
  std::vector<std::size_t> nics, gpus;
  double gbyte_s = 0;
  bool known = true;
};

void nic_shared(const Machine& machine, Verdict& verdict) {
  if (machine.topology.gpus.empty()) return verdict.not_checked("no GPUs");
  std::vector<std::size_t> share_of(machine.topology.nics.size(), nowhere);
  std::map<std::pair<std::size_t, std::string_view>, std::size_t> adapters;  // host, adapter
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
    verdict.looked();
    if (share.gpus.size() < 2) continue;
    std::string cost;
    if (share.known)
      cost = fmt::format("each has {:.3g} of {:.3g} GB/s when all send at once",
                         share.gbyte_s / static_cast<double>(share.gpus.size()), share.gbyte_s);
    std::vector<Subject> gpus, nics;
    for (const std::size_t gpu : share.gpus) gpus.emplace_back(machine.gpu(gpu));
    for (const std::size_t nic : share.nics) nics.emplace_back(machine.nic(nic));
    // Who shares with whom: a list of subjects does not tell.
    const std::string evidence = fmt::format(
        "{} ({}) share {} ({})", plural(gpus.size(), "GPU"), local_names(gpus),
        nics.size() == 1 ? "one NIC" : fmt::format("{} ports of one adapter", nics.size()),
        local_names(nics));
    std::vector<Subject> subjects = std::move(nics);
    subjects.insert(subjects.end(), gpus.begin(), gpus.end());
    verdict.add(subjects, {.severity = Severity::info, .evidence = evidence, .consequence = cost});
  }
  verdict.not_checked("no NIC that a GPU could use");
}

// --- rails ---

void rails_assumed(const Machine& machine, Verdict& verdict) {
  if (machine.hosts.size() < 2)
    return verdict.not_checked("rails join hosts, and there is only one");
  const auto leaves = machine.nic_facts[fact::leaf];
  std::vector<bool> seen(machine.topology.nics.size());
  std::size_t used = 0, assumed = 0, rails = 0;
  for (const HostView& view : machine.hosts) {
    std::size_t rails_here = 0;  // GPUs that share a NIC share a rail
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
  if (used == 0) return verdict.not_checked("no NIC that a GPU could use");
  verdict.looked();
  if (assumed == 0) return;
  verdict.add(
      std::vector<Subject>{},
      {.severity = Severity::info,
       .evidence = fmt::format("no source says on which leaf switch {} of {} hang; {} a host "
                               "are assumed by position",
                               assumed, plural(used, "NIC"), plural(rails, "rail")),
       .consequence = "if positions and leaves differ, replicate groups cross the spine",
       .fix = "ibnetdiscover > fabric.txt, then give it: --fabric fabric.txt"});
}

constexpr CheckRow rows[] = {
    {"gpudirect", "NICs reach GPU memory directly", gpudirect},
    {"nic_far", "GPUs have a NIC on their socket", nic_far},
    {"nic_shared", "Each GPU has NICs of its own", nic_shared},
    {"rails_assumed", "The leaf switches of the rails are known", rails_assumed},
};

}  // namespace

const std::span<const CheckRow> gpu_network_checks(rows);

}  // namespace atoll_v1::atoll::doctor

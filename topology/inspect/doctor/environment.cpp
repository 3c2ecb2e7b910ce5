// Checks of the process' environment: virtual machine, container, memory limits, library versions.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

constexpr double mebibyte = 1024.0 * 1024;

void vm_flattened(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    if (result.look(host, fact::virtual_machine).empty()) continue;
    if (!host.has_rdma || !is_flattened(host)) continue;
    if (!setting_of(host, "NCCL_TOPO_FILE").value.empty()) continue;
    result.add(host, {warning,
                      "this virtual machine shows every GPU equally far from every NIC, and "
                      "NCCL_TOPO_FILE is not set"});
  }
}

void memlock(const Machine& machine, CheckResult& result) {
  constexpr double least = 64 * mebibyte;
  for (const HostView& host : machine.hosts) {
    if (!host.has_rdma) continue;
    const bool is_unlimited = host[fact::memlock_bytes] == "unlimited";
    const auto bytes = host.number(fact::memlock_bytes);
    if (!is_unlimited && !bytes) {
      result.lacks(host, fact::memlock_bytes);
      continue;
    }
    result.looked();
    if (is_unlimited || *bytes >= least) continue;
    result.add(host, {warning, fmt::format("a process may lock only {:.4g} MiB of memory",
                                           *bytes / mebibyte)});
  }
}

void shm_small(const Machine& machine, CheckResult& result) {
  constexpr double least = 1024 * mebibyte;
  for (const HostView& host : machine.hosts) {
    result.look(host, fact::shm_bytes);
    const auto bytes = host.number(fact::shm_bytes);
    if (bytes && *bytes < least)
      result.add(host, {warning, fmt::format("/dev/shm holds only {:.4g} MiB", *bytes / mebibyte)});
  }
}

void shm_left(const Machine& machine, CheckResult& result) {
  constexpr std::size_t most_shown = 16;
  for (const HostView& host : machine.hosts) {
    const std::string_view left = result.look(host, fact::shm_left);
    const std::vector<std::string_view> names = words_of(left);
    if (left.empty() || left == "none" || !std::ranges::all_of(names, is_plain)) continue;
    std::string command = "rm";
    for (std::size_t i = 0; i < std::min(names.size(), most_shown); ++i)
      command += fmt::format(" /dev/shm/{}", names[i]);
    result.add(
        host,
        {warning,
         fmt::format("/dev/shm has {} of dead jobs: no process maps {}",
                     plural(names.size(), "file"), names.size() == 1 ? "it" : "them"),
         "",
         fmt::format("{}{}; if containers share /dev/shm, first check that their jobs have ended",
                     command, names.size() > most_shown ? " (and then run this again)" : "")});
  }
}

void hidden(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    const std::string_view inside = result.look(host, fact::container);
    const std::string_view paths = host[fact::hidden];
    if (inside.empty() || paths.empty() || paths == "none") continue;
    const bool is_container = inside == "yes";
    std::vector<std::string> fixes;
    if (paths.find("/dev") != std::string_view::npos)
      fixes.emplace_back(is_container ? "--device /dev/infiniband" : "modprobe ib_uverbs");
    if (paths.find("/sys") != std::string_view::npos)
      fixes.emplace_back(is_container ? "-v /sys:/sys:ro" : "mount -t sysfs sysfs /sys");
    result.add(
        host,
        {warning,
         fmt::format("{} {}", is_container ? "a container hides" : "this process does not see",
                     fmt::join(words_of(paths), ", ")),
         "",
         is_container ? fmt::format("start the container with {}", fmt::join(fixes, " "))
                      : fmt::format("{}", fmt::join(fixes, "; "))});
  }
}

// Reports GPUs on the PCI bus that the driver hides from this process. The NVML source compares the
// driver's GPUs with the PCI bus; if it ran and reported no hidden GPUs, the driver hides none.
void gpus_hidden(const Machine& machine, CheckResult& result) {
  for (const HostView& host : machine.hosts) {
    const std::string_view busids = host[fact::hidden_gpus];
    if (busids.empty()) {
      const bool nvml_looked = host.has_environment && !host[fact::driver_version].empty() &&
                               host[fmt::format("{}nvml", fact::source_prefix)].empty();
      if (host.gpus.empty())
        result.not_checked("no GPUs");
      else if (nvml_looked)
        result.looked();
      else
        result.lacks(host, fact::hidden_gpus);
      continue;
    }
    const std::vector<std::string_view> words = words_of(busids, " ,");
    const std::vector<std::string> names(words.begin(), words.end());
    result.add(host, {info, fmt::format("the PCI bus has {} that the driver does not show: {}",
                                        plural(names.size(), "GPU"), enumerate(names, 16))});
  }
}

using Version = std::array<int, 3>;

int highest_generation(const HostView& host) {
  int highest = 0;
  for (const GpuView* gpu : host.gpus)
    if (gpu->model != nullptr && gpu->model->kind == LinkKind::possible)
      highest = std::max(highest, gpu->model->generation);
  return highest;
}

void hwloc_version(const Machine& machine, CheckResult& result) {
  constexpr Version sees_nvlink{2, 5, 0}, last_doubling{2, 9, 0}, sees_hopper{2, 12, 0};
  if (machine.gpus.empty()) return;
  for (const HostView& host : machine.hosts) {
    const std::string_view text = result.look(host, fact::hwloc_version);
    const Version version = parse_version(text);
    const int generation = highest_generation(host);
    if (text.empty() || version < sees_nvlink) continue;
    if (version <= last_doubling && (generation == 3 || generation == 4)) {
      result.add(host, {info,
                        fmt::format("hwloc {} reports twice the bandwidth of NVLink generation {}",
                                    text, generation),
                        "none in atoll, which corrects the bandwidth; other tools show it doubled",
                        "use hwloc 2.12 or newer"});
      continue;
    }
    if (version <= last_doubling || version >= sees_hopper || generation < 4) continue;
    const bool unknown = host->gpu_links == IslandState::unknown;
    result.add(host, {unknown ? warning : info,
                      fmt::format("hwloc {} does not show the NVLinks of these GPUs", text),
                      unknown ? "the islands of these GPUs are unknown"
                              : "none, since another source shows these NVLinks",
                      "use hwloc 2.12 or newer, or add the output of nvidia-smi topo -m"});
  }
}

constexpr CheckRow rows[] = {
    {"vm_flattened", "Virtual machines show which GPUs and NICs are close to each other",
     vm_flattened, "no hosts", "NCCL pairs GPUs with the wrong NICs and does not use GPUDirect",
     "set NCCL_TOPO_FILE to the provider's file for this type of machine (Azure: "
     "/opt/microsoft/*-topo.xml) or to one from the catalog: atoll-topo --cluster NAME --format "
     "nccl-xml"},
    {"memlock", "Processes may lock enough memory for RDMA", memlock, "no RDMA NICs",
     "an unprivileged process cannot register memory with the NICs, and RDMA fails with \"cannot "
     "allocate memory\"",
     "ulimit -l unlimited; permanently: \"* - memlock unlimited\" in /etc/security/limits.conf, "
     "LimitMEMLOCK=infinity for slurmd, --ulimit memlock=-1 for containers"},
    {"shm_small", "Shared memory is large enough", shm_small, "no hosts",
     "NCCL exchanges data there and may fail to start",
     "containers: --shm-size=8g or --ipc=host; hosts: mount -o remount,size=50% /dev/shm"},
    {"shm_left", "Dead jobs have left no shared memory", shm_left, "no hosts",
     "the memory stays in use until the files are removed"},
    {"hidden", "No device files or parts of /sys are hidden", hidden, "no hosts",
     "NICs cannot be used, or their PCI paths are unknown"},
    {"gpus_hidden", "The driver shows every GPU of the PCI bus", gpus_hidden, "no hosts",
     "this process cannot use these GPUs",
     "if the process needs these GPUs, give its container or cgroup access to them (docker run "
     "--gpus all, the job's --gres, /dev/nvidia*)"},
    {"hwloc_version", "hwloc reports NVLink correctly", hwloc_version, "no GPUs"},
};

}  // namespace

const std::span<const CheckRow> environment_checks(rows);

}  // namespace atoll_v1::atoll::doctor

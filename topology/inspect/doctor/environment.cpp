// Checks of the process' environment: virtual machine, container, memory limits, library versions.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

constexpr double mebibyte = 1024.0 * 1024;

void vm_flattened(const Machine& machine, CheckResult& result) {
  each_host(machine, result, fact::virtual_machine, [&](const HostView& view, std::string_view) {
    if (!has_rdma(machine, view) || !is_flattened(machine, view)) return;
    if (!setting_of(*view.host, "NCCL_TOPO_FILE").value.empty()) return;
    result.add(*view.host, {warning,
                            "this virtual machine shows every GPU equally far from every NIC, and "
                            "NCCL_TOPO_FILE is not set",
                            "NCCL pairs GPUs with the wrong NICs and does not use GPUDirect",
                            "set NCCL_TOPO_FILE to the provider's file for this type of machine "
                            "(Azure: /opt/microsoft/*-topo.xml) or to one from the catalog: "
                            "atoll-topo --cluster NAME --format nccl-xml"});
  });
}

void memlock(const Machine& machine, CheckResult& result) {
  constexpr double least = 64 * mebibyte;
  for (const HostView& view : machine.hosts) {
    if (!has_rdma(machine, view)) continue;
    const std::string_view limit = get_fact(view.host->facts, fact::memlock_bytes);
    const auto bytes = number_fact(view.host->facts, fact::memlock_bytes);
    if (limit != "unlimited" && !bytes) {
      result.lacks(*view.host, fact::memlock_bytes);
      continue;
    }
    result.looked();
    if (limit == "unlimited" || *bytes >= least) continue;
    result.add(
        *view.host,
        {warning, fmt::format("a process may lock only {:.4g} MiB of memory", *bytes / mebibyte),
         "an unprivileged process cannot register memory with the NICs, and RDMA fails with "
         "\"cannot allocate memory\"",
         "ulimit -l unlimited; permanently: \"* - memlock unlimited\" in "
         "/etc/security/limits.conf, LimitMEMLOCK=infinity for slurmd, --ulimit memlock=-1 "
         "for containers"});
  }
}

void shm_small(const Machine& machine, CheckResult& result) {
  constexpr double least = 1024 * mebibyte;
  each_host(machine, result, fact::shm_bytes, [&](const HostView& view, std::string_view) {
    const auto bytes = number_fact(view.host->facts, fact::shm_bytes);
    if (!bytes || *bytes >= least) return;
    result.add(
        *view.host,
        {warning, fmt::format("/dev/shm holds only {:.4g} MiB", *bytes / mebibyte),
         "NCCL exchanges data there and may fail to start",
         "containers: --shm-size=8g or --ipc=host; hosts: mount -o remount,size=50% /dev/shm"});
  });
}

void shm_left(const Machine& machine, CheckResult& result) {
  constexpr std::size_t most_shown = 16;
  each_host(machine, result, fact::shm_left, [&](const HostView& view, std::string_view left) {
    if (left == "none") return;
    const std::vector<std::string_view> names = words_of(left);
    if (!std::ranges::all_of(names, is_plain)) return;
    std::string command = "rm";
    for (std::size_t i = 0; i < std::min(names.size(), most_shown); ++i)
      command += fmt::format(" /dev/shm/{}", names[i]);
    result.add(
        *view.host,
        {warning,
         fmt::format("/dev/shm has {} of dead jobs: no process maps {}",
                     plural(names.size(), "file"), names.size() == 1 ? "it" : "them"),
         "the memory stays in use until the files are removed",
         fmt::format("{}{}; if containers share /dev/shm, first check that their jobs have "
                     "ended",
                     command, names.size() > most_shown ? " (and then run this again)" : "")});
  });
}

void hidden(const Machine& machine, CheckResult& result) {
  each_host(machine, result, fact::container, [&](const HostView& view, std::string_view inside) {
    const std::string_view paths = get_fact(view.host->facts, fact::hidden);
    if (paths.empty() || paths == "none") return;
    const bool is_container = inside == "yes";
    std::vector<std::string> fixes;
    if (paths.find("/dev") != std::string_view::npos)
      fixes.emplace_back(is_container ? "--device /dev/infiniband" : "modprobe ib_uverbs");
    if (paths.find("/sys") != std::string_view::npos)
      fixes.emplace_back(is_container ? "-v /sys:/sys:ro" : "mount -t sysfs sysfs /sys");
    result.add(
        *view.host,
        {warning,
         fmt::format("{} {}", is_container ? "a container hides" : "this process does not see",
                     fmt::join(words_of(paths), ", ")),
         "NICs cannot be used, or their PCI paths are unknown",
         is_container ? fmt::format("start the container with {}", fmt::join(fixes, " "))
                      : fmt::format("{}", fmt::join(fixes, "; "))});
  });
}

// Reports GPUs on the PCI bus that the driver hides from this process. The NVML source compares the
// driver's GPUs with the PCI bus; if it ran and reported no hidden GPUs, the driver hides none.
void gpus_hidden(const Machine& machine, CheckResult& result) {
  for (const HostView& view : machine.hosts) {
    const Facts& facts = view.host->facts;
    const std::string_view busids = get_fact(facts, fact::hidden_gpus);
    if (busids.empty()) {
      const bool nvml_looked = view.has_environment &&
                               !get_fact(facts, fact::driver_version).empty() &&
                               get_fact(facts, std::string(fact::source_prefix) + "nvml").empty();
      if (view.gpus.empty())
        result.not_checked("no GPUs");
      else if (nvml_looked)
        result.looked();
      else
        result.lacks(*view.host, fact::hidden_gpus);
      continue;
    }
    const std::vector<std::string_view> words = words_of(busids, " ,");
    const std::vector<std::string> names(words.begin(), words.end());
    result.add(*view.host, {info,
                            fmt::format("the PCI bus has {} that the driver does not show: {}",
                                        plural(names.size(), "GPU"), enumerate(names, 16)),
                            "this process cannot use these GPUs",
                            "if the process needs these GPUs, give its container or cgroup access "
                            "to them (docker run --gpus all, the job's --gres, /dev/nvidia*)"});
  }
}

using Version = std::array<int, 3>;

int highest_generation(const Machine& machine, const HostView& view) {
  int highest = 0;
  for (const std::size_t gpu : view.gpus)
    if (const GpuModel* model = machine.models[gpu];
        model != nullptr && model->kind == LinkKind::possible)
      highest = std::max(highest, model->generation);
  return highest;
}

void hwloc_version(const Machine& machine, CheckResult& result) {
  constexpr Version sees_nvlink{2, 5, 0}, last_doubling{2, 9, 0}, sees_hopper{2, 12, 0};
  if (machine.topology.gpus.empty()) return;
  each_host(machine, result, fact::hwloc_version, [&](const HostView& view, std::string_view text) {
    const Version version = parse_version(text);
    const int generation = highest_generation(machine, view);
    if (version < sees_nvlink) return;
    if (version <= last_doubling && (generation == 3 || generation == 4)) {
      result.add(*view.host,
                 {info,
                  fmt::format("hwloc {} reports twice the bandwidth of NVLink generation {}", text,
                              generation),
                  "none in atoll, which corrects the bandwidth; other tools show it doubled",
                  "use hwloc 2.12 or newer"});
      return;
    }
    if (version <= last_doubling || version >= sees_hopper || generation < 4) return;
    const bool unknown = view.host->gpu_links == IslandState::unknown;
    result.add(*view.host, {unknown ? warning : info,
                            fmt::format("hwloc {} does not show the NVLinks of these GPUs", text),
                            unknown ? "the islands of these GPUs are unknown"
                                    : "none, since another source shows these NVLinks",
                            "use hwloc 2.12 or newer, or add the output of nvidia-smi topo -m"});
  });
}

constexpr CheckRow rows[] = {
    {"vm_flattened", "Virtual machines show which GPUs and NICs are close to each other", vm_flattened,
     "no hosts"},
    {"memlock", "Processes may lock enough memory for RDMA", memlock, "no RDMA NICs"},
    {"shm_small", "Shared memory is large enough", shm_small, "no hosts"},
    {"shm_left", "Dead jobs have left no shared memory", shm_left, "no hosts"},
    {"hidden", "No device files or parts of /sys are hidden", hidden, "no hosts"},
    {"gpus_hidden", "The driver shows every GPU of the PCI bus", gpus_hidden, "no hosts"},
    {"hwloc_version", "hwloc reports NVLink correctly", hwloc_version, "no GPUs"},
};

}  // namespace

const std::span<const CheckRow> environment_checks(rows);

}  // namespace atoll_v1::atoll::doctor

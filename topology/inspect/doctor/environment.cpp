// What surrounds the process: virtual machine, container, limits, versions.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

constexpr double mebibyte = 1024.0 * 1024;

void vm_flattened(const Machine& machine, Verdict& verdict) {
  each_host(machine, verdict, fact::virtual_machine, [&](const HostView& view, std::string_view) {
    if (!has_rdma(machine, view) || !is_flattened(machine, view)) return;
    if (!setting_of(*view.host, "NCCL_TOPO_FILE").value.empty()) return;
    verdict.add(
        Subject(*view.host),
        {.severity = Severity::warning,
         .evidence = "a virtual machine that shows every GPU equally far from every NIC, and "
                     "NCCL_TOPO_FILE is not set",
         .consequence = "NCCL pairs GPUs with the wrong NICs and does not use GPUDirect",
         .fix = "NCCL_TOPO_FILE=FILE, with the provider's file for this kind of machine (Azure: "
                "/opt/microsoft/*-topo.xml), or the catalog's: atoll-topo --cluster NAME --format "
                "nccl-xml"});
  });
}

void memlock(const Machine& machine, Verdict& verdict) {
  constexpr double least = 64 * mebibyte;
  bool any = false;
  for (const HostView& view : machine.hosts) {
    if (!has_rdma(machine, view)) continue;
    any = true;
    const std::string_view limit = get_fact(view.host->facts, fact::memlock_bytes);
    const auto bytes = number_fact(view.host->facts, fact::memlock_bytes);
    if (limit != "unlimited" && !bytes) {
      verdict.lacks(*view.host, fact::memlock_bytes);
      continue;
    }
    verdict.looked();
    if (limit == "unlimited" || *bytes >= least) continue;
    verdict.add(
        Subject(*view.host),
        {.severity = Severity::warning,
         .evidence = fmt::format("a process may lock {:.4g} MiB of memory", *bytes / mebibyte),
         .consequence = "memory cannot be registered with the NICs (unless the process is "
                        "privileged), and RDMA fails: cannot allocate memory",
         .fix = "ulimit -l unlimited; for good: \"* - memlock unlimited\" in "
                "/etc/security/limits.conf, LimitMEMLOCK=infinity for slurmd, --ulimit "
                "memlock=-1 for containers"});
  }
  if (!any) verdict.not_checked("no RDMA NICs");
}

void shm_small(const Machine& machine, Verdict& verdict) {
  constexpr double least = 1024 * mebibyte;
  each_host(machine, verdict, fact::shm_bytes, [&](const HostView& view, std::string_view) {
    const auto bytes = number_fact(view.host->facts, fact::shm_bytes);
    if (!bytes || *bytes >= least) return;
    verdict.add(
        Subject(*view.host),
        {.severity = Severity::warning,
         .evidence = fmt::format("/dev/shm holds {:.4g} MiB", *bytes / mebibyte),
         .consequence = "ranks of one host meet in shared memory: NCCL and the host backend "
                        "may fail to start",
         .fix = "containers: --shm-size=8g or --ipc=host; hosts: mount -o remount,size=50% "
                "/dev/shm"});
  });
}

void hidden(const Machine& machine, Verdict& verdict) {
  each_host(machine, verdict, fact::container, [&](const HostView& view, std::string_view inside) {
    const std::string_view paths = get_fact(view.host->facts, fact::hidden);
    if (paths.empty() || paths == "none") return;
    const bool is_container = inside == "yes";
    std::vector<std::string> fixes;
    if (paths.find("/dev") != std::string_view::npos)
      fixes.emplace_back(is_container ? "--device /dev/infiniband" : "modprobe ib_uverbs");
    if (paths.find("/sys") != std::string_view::npos)
      fixes.emplace_back(is_container ? "-v /sys:/sys:ro" : "mount -t sysfs sysfs /sys");
    verdict.add(
        Subject(*view.host),
        {.severity = Severity::warning,
         .evidence =
             fmt::format("{} {}", is_container ? "a container hides" : "this process does not see",
                         fmt::join(words_of(paths), ", ")),
         .consequence = "NICs cannot be used, or their places cannot be seen",
         .fix = is_container ? fmt::format("start the container with {}", fmt::join(fixes, " "))
                             : fmt::format("{}", fmt::join(fixes, "; "))});
  });
}

// NVML compares what the driver shows with the PCI bus; where it could look and the fact is absent,
// nothing is hidden.
void gpus_hidden(const Machine& machine, Verdict& verdict) {
  if (machine.hosts.empty()) return verdict.not_checked("no hosts");
  for (const HostView& view : machine.hosts) {
    const Facts& facts = view.host->facts;
    const std::string_view busids = get_fact(facts, fact::hidden_gpus);
    if (busids.empty()) {
      const bool nvml_looked = view.has_environment &&
                               !get_fact(facts, fact::driver_version).empty() &&
                               get_fact(facts, std::string(fact::source_prefix) + "nvml").empty();
      if (view.gpus.empty())
        verdict.not_checked("no GPUs");
      else if (nvml_looked)
        verdict.looked();
      else
        verdict.lacks(*view.host, fact::hidden_gpus);
      continue;
    }
    const std::vector<std::string_view> words = words_of(busids, " ,");
    const std::vector<std::string> names(words.begin(), words.end());
    verdict.add(Subject(*view.host),
                {.severity = Severity::info,
                 .evidence = fmt::format("the driver does not show {} of the PCI bus: {}",
                                         plural(names.size(), "GPU"), enumerate(names, 16)),
                 .consequence = "this process cannot use them",
                 .fix = "if it should: give the container or cgroup access to them (docker run "
                        "--gpus all, the job's --gres, /dev/nvidia*)"});
  }
}

using Version = std::array<int, 3>;

Version version_of(std::string_view text) {
  Version version{};
  std::size_t part = 0;
  for (const std::string_view word : words_of(text, ".")) {
    if (part == version.size()) break;
    int& number = version[part++];
    std::from_chars(word.data(), word.data() + word.size(), number);
  }
  return version;
}

int highest_generation(const Machine& machine, const HostView& view) {
  int highest = 0;
  for (const std::size_t gpu : view.gpus)
    if (const GpuModel* model = machine.models[gpu];
        model != nullptr && model->kind == LinkKind::possible)
      highest = std::max(highest, model->generation);
  return highest;
}

void hwloc_version(const Machine& machine, Verdict& verdict) {
  constexpr Version sees_nvlink{2, 5, 0}, last_doubling{2, 9, 0}, sees_hopper{2, 12, 0};
  if (machine.topology.gpus.empty()) return verdict.not_checked("no GPUs");
  each_host(
      machine, verdict, fact::hwloc_version, [&](const HostView& view, std::string_view text) {
        const Version version = version_of(text);
        const int generation = highest_generation(machine, view);
        if (version < sees_nvlink) return;
        if (version <= last_doubling && (generation == 3 || generation == 4)) {
          verdict.add(
              Subject(*view.host),
              {.severity = Severity::info,
               .evidence = fmt::format("hwloc {} gives NVLink of generation {} twice its rate",
                                       text, generation),
               .consequence = "none here, where it is halved; other tools are misled",
               .fix = "hwloc 2.12 or newer"});
          return;
        }
        if (version <= last_doubling || version >= sees_hopper || generation < 4) return;
        const bool unknown = view.host->gpu_links == IslandState::unknown;
        verdict.add(
            Subject(*view.host),
            {.severity = unknown ? Severity::warning : Severity::info,
             .evidence = fmt::format("hwloc {} does not show the NVLinks of these GPUs", text),
             .consequence = unknown ? "their islands are unknown"
                                    : "none here, where another source shows them",
             .fix = "hwloc 2.12 or newer, or add nvidia-smi topo -m"});
      });
}

constexpr CheckRow rows[] = {
    {"vm_flattened", "Virtual machines say where their devices are", vm_flattened},
    {"memlock", "Memory may be locked", memlock},
    {"shm_small", "Shared memory is large enough", shm_small},
    {"hidden", "Containers hide nothing that is needed", hidden},
    {"gpus_hidden", "The driver shows every GPU of the PCI bus", gpus_hidden},
    {"hwloc_version", "hwloc reads NVLink well", hwloc_version},
};

}  // namespace

const std::span<const CheckRow> environment_checks(rows);

}  // namespace atoll_v1::atoll::doctor

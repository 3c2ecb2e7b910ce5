// Describes the surroundings of this process: kernel, container, limits and NCCL settings.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <vector>

#include "facts.hpp"
#include "parse_number.hpp"
#include "sources/left_behind.hpp"
#include "sources/pci_address.hpp"
#include "sources/small_file.hpp"
#include "sources/source.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t longest_value = 1024;
constexpr std::size_t most_settings = 512;
constexpr std::size_t largest_settings_file = std::size_t{64} << 10;
constexpr std::size_t largest_proc_file = std::size_t{256} << 10;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string_view yes_no(bool value) { return value ? "yes" : "no"; }

// Calls use(line) for each line of the text until it returns false.
template <class Use>
void for_each_line(std::string_view text, Use use) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    if (!use(text.substr(0, end)) || end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

class Surroundings {
 public:
  Surroundings(const LiveRequest& request, std::span<const std::string> variables,
               const Topology& topology, TopologyHost& host)
      : request_(request), variables_(variables), topology_(topology), host_(host) {}

  void describe() {
    set(fact::kernel_release, first_line(request_.procfs / "sys/kernel/osrelease"));
    set(fact::virtual_machine, virtual_machine());
    set(fact::container, container());
    set(fact::iommu, iommu());
    describe_driver();
    describe_limits();
    describe_hidden();
    describe_nccl();
  }

 private:
  void set(std::string_view name, std::string_view value) { set_fact(host_.facts, name, value); }

  std::string_view variable(std::string_view name) const {
    for (const std::string& entry : variables_)
      if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
        return std::string_view(entry).substr(name.size() + 1);
    return {};
  }

  // x86 processors show a flag under a hypervisor. Other processors do not report it.
  std::string_view virtual_machine() const {
    const auto text = read_start(request_.procfs / "cpuinfo", std::size_t{64} << 10);
    std::string_view answer;
    for_each_line(text ? *text : "", [&](std::string_view line) {
      if (!line.starts_with("flags")) return true;
      answer = yes_no(fmt::format("{} ", line).find(" hypervisor ") != std::string::npos);
      return false;
    });
    return answer;
  }

  // Container engines leave environment variables, an overlay root file system, or control groups
  // with their names.
  std::string_view container() const {
    for (const std::string_view name :
         {"container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"})
      if (!variable(name).empty()) return "yes";
    const auto mounts = read_start(request_.procfs / "self/mountinfo", largest_proc_file);
    const auto groups = read_start(request_.procfs / "1/cgroup", largest_proc_file);
    if (!mounts && !groups) return "";
    bool is_inside = false;
    for_each_line(mounts ? *mounts : "", [&](std::string_view line) {
      // The form of a line in mountinfo is "id parent major:minor root MOUNTPOINT options ... -
      // TYPE source options".
      const auto type = line.find(" - ");
      std::string_view field = line;
      for (int i = 0; i < 4 && !field.empty(); ++i) {
        const auto blank = field.find(' ');
        field = blank == std::string_view::npos ? std::string_view() : field.substr(blank + 1);
      }
      is_inside = is_inside || (field.starts_with("/ ") && type != std::string_view::npos &&
                                line.substr(type + 3).starts_with("overlay "));
      return !is_inside;
    });
    for (const std::string_view word : {"docker", "kubepods", "containerd", "libpod", "/lxc"})
      is_inside = is_inside || (groups && groups->find(word) != std::string::npos);
    return yes_no(is_inside);
  }

  // Looks at the IOMMU groups of GPUs and NICs, or at all groups when these have none. The kernel
  // reports the type of a group as "identity", "DMA" or "DMA-FQ".
  std::string_view iommu() const {
    if (!is_there(request_.sysfs / "class")) return "";
    const fs::path groups = request_.sysfs / "kernel/iommu_groups";
    const std::vector<std::string> numbers = entries(groups);
    if (numbers.empty()) return "off";
    std::vector<std::string> types;
    const auto ask = [&](const fs::path& group) {
      if (std::string type = first_line(group / "type"); !type.empty())
        types.push_back(std::move(type));
    };
    const auto ask_device = [&](const std::string& busid) {
      if (const fs::path folder = pci_folder(request_.sysfs, busid); !folder.empty())
        ask(folder / "iommu_group");
    };
    for (const TopologyGpu& gpu : topology_.gpus) ask_device(gpu.busid);
    for (const TopologyNic& nic : topology_.nics) ask_device(nic.busid);
    if (types.empty())
      for (const std::string& number : numbers) ask(groups / number);
    if (types.empty()) return is_passthrough_by_default() ? "passthrough" : "translated";
    return std::ranges::all_of(types, [](const auto& type) { return type == "identity"; })
               ? "passthrough"
               : "translated";
  }

  // Kernels before 4.20 do not report the type of a group, so the kernel command line decides.
  bool is_passthrough_by_default() const {
    const std::string line = " " + first_line(request_.procfs / "cmdline") + " ";
    return line.find(" iommu=pt ") != std::string::npos ||
           line.find(" iommu.passthrough=1 ") != std::string::npos;
  }

  bool is_module_loaded(std::string_view name) const {
    return is_there(request_.sysfs / "module" / name) ||
           (modules_ && ("\n" + *modules_).find(fmt::format("\n{} ", name)) != std::string::npos);
  }

  // Linux supports dma-buf export of GPU memory from 5.12 on, with NVIDIA's open kernel module
  // only.
  bool has_dma_buf_kernel() const {
    return parse_version(first_line(request_.procfs / "sys/kernel/osrelease")) >=
           std::array{5, 12, 0};
  }

  // Reads "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build ..."
  void describe_driver() {
    modules_ = read_start(request_.procfs / "modules", largest_proc_file);
    const std::string line = first_line(request_.procfs / "driver/nvidia/version");
    if (line.empty()) return;
    set(fact::driver_version, version_in(line));
    const bool is_open = line.find("Open Kernel Module") != std::string::npos;
    set(fact::dma_buf, yes_no(is_open && has_dma_buf_kernel()));
    if (modules_ || is_there(request_.sysfs / "module"))
      set(fact::peermem,
          yes_no(is_module_loaded("nvidia_peermem") || is_module_loaded("nv_peer_mem")));
    bool has_channel = false;
    for (const std::string& name : entries(request_.dev / "nvidia-caps-imex-channels"))
      has_channel = has_channel || name.starts_with("channel");
    set(fact::imex_channel, yes_no(has_channel));
  }

  // Returns the first word that consists of digits and dots.
  static std::string_view version_in(std::string_view line) {
    while (!line.empty()) {
      const auto end = std::min(line.find(' '), line.size());
      const std::string_view word = line.substr(0, end);
      if (word.find('.') != std::string_view::npos && word.front() != '.' && word.back() != '.' &&
          word.find_first_not_of("0123456789.") == std::string_view::npos)
        return word;
      line.remove_prefix(std::min(end + 1, line.size()));
    }
    return {};
  }

  void describe_limits() {
    struct rlimit locked {};
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0)
      set(fact::memlock_bytes,
          locked.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::to_string(locked.rlim_cur));
    struct statvfs shared {};
    if (statvfs((request_.dev / "shm").c_str(), &shared) == 0)
      set(fact::shm_bytes,
          fmt::to_string(static_cast<unsigned long long>(shared.f_blocks) * shared.f_frsize));
    set(fact::shm_left, left_in_shared_memory(request_));
  }

  void describe_hidden() {
    std::string hidden;
    const auto devices = read_start(request_.procfs / "bus/pci/devices", 256);
    if (entries(request_.sysfs / "bus/pci/devices").empty() && devices && !devices->empty())
      hidden += "/sys";
    if (!entries(request_.sysfs / "class/infiniband").empty() &&
        !is_there(request_.dev / "infiniband"))
      hidden += hidden.empty() ? "/dev/infiniband" : " /dev/infiniband";
    set(fact::hidden, hidden);
  }

  void set_setting(std::string_view prefix, std::string_view name, std::string_view value) {
    constexpr std::string_view letters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    if (name.empty() || name.size() > 128 || settings_ >= most_settings ||
        name.find_first_not_of(letters) != std::string_view::npos)
      return;
    ++settings_;
    set(fmt::format("{}{}", prefix, name), printable(value, longest_value));
  }

  // Reads NCCL's settings in NCCL's order of precedence; set_fact() keeps the first value of each.
  void describe_nccl() {
    for (const std::string& entry : variables_) {
      const auto equals = entry.find('=');
      if (entry.starts_with("NCCL_") && equals != std::string::npos)
        set_setting(fact::env_prefix, std::string_view(entry).substr(0, equals),
                    std::string_view(entry).substr(equals + 1));
    }
    if (const std::string_view file = variable("NCCL_CONF_FILE"); !file.empty())
      read_settings(fs::path(file));
    else if (const std::string_view home = variable("HOME"); !home.empty())
      read_settings(fs::path(home) / ".nccl.conf");
    read_settings(request_.etc / "nccl.conf");
  }

  void read_settings(const fs::path& path) {
    const auto text = read_start(path, largest_settings_file);
    for_each_line(text ? *text : "", [&](std::string_view line) {
      line = trimmed(line);
      const auto equals = line.find('=');
      if (!line.starts_with('#') && equals != std::string_view::npos)
        set_setting(fact::nccl_conf_prefix, trimmed(line.substr(0, equals)),
                    trimmed(line.substr(equals + 1)));
      return true;
    });
  }

  const LiveRequest& request_;
  std::span<const std::string> variables_;
  const Topology& topology_;
  TopologyHost& host_;
  std::optional<std::string> modules_;  // content of /proc/modules, once it was read
  std::size_t settings_ = 0;
};

}  // namespace

void read_environment(const LiveRequest& request, std::span<const std::string> variables,
                      Topology& topology) {
  const auto host = std::ranges::find(topology.hosts, request.host_id, &TopologyHost::id);
  if (host != topology.hosts.end()) Surroundings(request, variables, topology, *host).describe();
}

void environment(const LiveRequest& request, Topology& topology) {
  std::vector<std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    variables.emplace_back(*entry);
  read_environment(request, variables, topology);
}

}  // namespace atoll_v1::atoll::topology_sources

// Describes the surroundings of this process: kernel, container, limits and NCCL settings.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "facts.hpp"
#include "parse_number.hpp"
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

// --- shared memory that jobs left behind when they died ---

// Prefixes of the names that NCCL, Open MPI and older versions of atoll give to shared memory.
constexpr std::array<std::string_view, 4> prefixes = {"atoll-", "nccl-", "vader_segment.",
                                                      "sm_segment."};
constexpr std::size_t longest_name = 200;
constexpr std::size_t most_names = 256;
constexpr std::time_t least_age = 60;  // in seconds; younger files are not examined

bool is_ours(std::string_view name) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  return name.size() <= longest_name && name.find_first_not_of(letters) == std::string_view::npos &&
         std::ranges::any_of(prefixes, [&](std::string_view p) { return name.starts_with(p); });
}

bool is_number(std::string_view name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
}

// Removes from `files`, whose keys are inode numbers, the files that a process has mapped. `maps`
// is /proc/PID/maps, with lines "ADDRESSES PERMISSIONS OFFSET DEVICE INODE PATH", see proc(5). If
// the process has mapped a file of another file system with the same inode number, a file is
// removed by mistake and then not reported.
void keep_unmapped(const std::filesystem::path& maps, std::map<unsigned long, std::string>& files) {
  std::ifstream file(maps);
  for (std::string line; !files.empty() && std::getline(file, line);) {
    std::istringstream fields(line);
    std::string skipped;
    unsigned long inode = 0;
    if (fields >> skipped >> skipped >> skipped >> skipped >> inode) files.erase(inode);
  }
}

// Returns the names in /dev/shm that jobs of atoll, NCCL or Open MPI have made and that no process
// maps any more, separated by spaces, or "none". Considers only files of this user, or of all users
// for root, because other processes are not visible; files of the last minute may belong to a job
// that is starting. Returns "" if /dev/shm cannot be read. Processes in other PID namespaces are
// not visible either.
std::string left_in_shared_memory(const LiveRequest& request) {
  const auto folder = request.dev / "shm";
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return "";
  std::map<unsigned long, std::string> files;  // names of the files, by inode
  for (const std::string& name : entries(folder)) {
    if (!is_ours(name) || ::lstat((folder / name).c_str(), &status) != 0) continue;
    const bool is_visible = ::geteuid() == 0 || status.st_uid == ::geteuid();
    if (S_ISREG(status.st_mode) && is_visible && status.st_mtime + least_age < std::time(nullptr))
      files.emplace(status.st_ino, name);
  }
  if (files.empty()) return "none";
  for (const std::string& process : entries(request.procfs)) {
    if (is_number(process)) keep_unmapped(request.procfs / process / "maps", files);
  }
  std::string names;
  std::size_t count = 0;
  for (const auto& [inode, name] : files) {
    if (++count <= most_names) names += (names.empty() ? "" : " ") + name;
  }
  return names.empty() ? "none" : names;
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
    const std::string text =
        read_start(request_.procfs / "cpuinfo", std::size_t{64} << 10).value_or("");
    for (const std::string_view line : words_of(text, "\n"))
      if (line.starts_with("flags"))
        return yes_no(fmt::format("{} ", line).find(" hypervisor ") != std::string::npos);
    return "";
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
    // A line of mountinfo is "id parent major:minor root MOUNTPOINT options ... - TYPE source
    // options".
    for (const std::string_view line : words_of(mounts ? *mounts : std::string_view(), "\n")) {
      const std::size_t type = line.find(" - ");
      const auto fields = words_of(line);
      is_inside =
          is_inside || (fields.size() > 4 && fields[4] == "/" && type != std::string_view::npos &&
                        line.substr(type + 3).starts_with("overlay "));
    }
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
    for (const std::string_view word : words_of(line))
      if (word.find('.') != std::string_view::npos && word.front() != '.' && word.back() != '.' &&
          word.find_first_not_of("0123456789.") == std::string_view::npos)
        return word;
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
    const std::string text = read_start(path, largest_settings_file).value_or("");
    for (const std::string_view line : words_of(text, "\n")) {
      const auto equals = line.find('=');
      if (!trimmed(line).starts_with('#') && equals != std::string_view::npos)
        set_setting(fact::nccl_conf_prefix, trimmed(line.substr(0, equals)),
                    trimmed(line.substr(equals + 1)));
    }
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

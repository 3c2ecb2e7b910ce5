#include "core/limits.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "core/parse.hpp"

namespace atoll_v1::atoll {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();
constexpr std::streamsize most_ignored = std::numeric_limits<std::streamsize>::max();
constexpr std::uint64_t least_checked = std::uint64_t{1} << 26;

// Returns the folders of the control groups around this process, the innermost first: those of
// version 2, and those of version 1 of a controller such as "pids". Folders that do not exist may
// be among them, because a container sees the paths of its groups on the host. `root` is the root
// of the file system, which tests replace.
std::vector<fs::path> control_groups(std::string_view controller, const fs::path& root) {
  std::vector<fs::path> groups;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // a line is NUMBER:CONTROLLERS:/PATH
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    fs::path base = root / "sys/fs/cgroup";
    if (!line.starts_with("0::")) {
      const auto listed = split(std::string_view(line).substr(first + 1, second - first - 1), ',');
      if (std::ranges::find(listed, controller) == listed.end()) continue;
      base /= controller;
    }
    fs::path path = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
    for (; !path.empty(); path = path.parent_path()) groups.push_back(base / path);
    groups.push_back(base);
  }
  return groups;
}

// Returns the number at the start of a file; nothing if there is none, as with "max".
std::optional<std::uint64_t> number_of(const fs::path& file) {
  std::uint64_t value = 0;
  if (std::ifstream(file) >> value) return value;
  return std::nullopt;
}

std::uint64_t rest_of(std::uint64_t limit, std::uint64_t used) {
  return limit > used ? limit - used : 0;
}

// Returns the number after `key` in a file of lines "KEY NUMBER".
std::optional<std::uint64_t> number_in(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string word; in >> word; in.ignore(most_ignored, '\n')) {
    std::uint64_t value = 0;
    if (word == key && in >> value) return value;
    in.clear();
  }
  return std::nullopt;
}

// Returns the bytes that are free in the control group of version 2 with this folder. Its cache of
// files does not count as used, because the kernel can drop it.
std::uint64_t free_in_group(const fs::path& group) {
  const auto most = number_of(group / "memory.max");  // the file may contain "max"
  if (!most) return unlimited;
  std::uint64_t used = 0;
  for (const std::string_view key : {"anon", "shmem", "kernel", "slab_unreclaimable"}) {
    if (key == "slab_unreclaimable" && number_in(group / "memory.stat", "kernel")) continue;
    used += number_in(group / "memory.stat", key).value_or(0);
  }
  return rest_of(*most, used);
}

// A limit of a group also applies to the groups inside it.
std::uint64_t free_in_groups(const fs::path& root) {
  std::uint64_t least = unlimited;
  for (const fs::path& group : control_groups("memory", root))
    least = std::min(least, free_in_group(group));
  return least;
}

std::uint64_t free_on_host(const fs::path& root) {
  const auto available = number_in(root / "proc/meminfo", "MemAvailable:");
  if (!available) return unlimited;
  const auto swap = number_in(root / "proc/meminfo", "SwapFree:").value_or(0);
  return (*available + swap) * 1024;  // the file counts in kB
}

}  // namespace

FreeMemory free_memory(const fs::path& root) {
  FreeMemory free{free_on_host(root), unlimited, "no limit"};
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t mapped = number_of(root / "proc/self/statm").value_or(0) * page;
  const auto limit_by = [&](std::uint64_t bytes, std::string_view name) {
    if (bytes >= free.process) return;
    free.process = bytes;
    free.limit = name;
  };
  limit_by(free_in_groups(root), "the memory limit of its control group");
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    limit_by(rest_of(limit.rlim_cur, mapped), "its limit of address space (ulimit -v)");
  return free;
}

void require_free_memory(std::uint64_t bytes) {
  if (bytes < least_checked) return;
  const FreeMemory free = free_memory();
  require(bytes <= free.host, ErrorCode::out_of_memory,
          "CPU memory: cannot allocate {} bytes: {} are free on this host (MemAvailable and "
          "SwapFree of /proc/meminfo)",
          bytes, free.host);
  require(bytes <= free.process, ErrorCode::out_of_memory,
          "CPU memory: cannot allocate {} bytes: this process can take {} more, by {}", bytes,
          free.process, free.limit);
}

std::string thread_limit(const std::filesystem::path& root) {
  for (const auto& group : control_groups("pids", root)) {
    const auto most = number_of(group / "pids.max"), now = number_of(group / "pids.current");
    if (!most || !now || *now < *most) continue;
    return fmt::format(
        "the control group of this process allows {} processes and threads: raise {}", *most,
        (group / "pids.max").string());
  }
  rlimit limit{};
  const bool limits_user =
      ::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (limits_user) {
    return fmt::format(
        "the user of this process may have {} processes and threads: raise `ulimit -u`",
        limit.rlim_cur);
  }
  return "raise `ulimit -v`, kernel.threads-max or kernel.pid_max";
}

}  // namespace atoll_v1::atoll

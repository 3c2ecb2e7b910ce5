#include "loop/processors.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "environment.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

using CpuSet = std::unique_ptr<cpu_set_t, decltype([](cpu_set_t* set) { CPU_FREE(set); })>;

// The processors that a process may run on; 0 is this process. Doubles the size of the mask until
// the kernel accepts it, because a machine may have more than 1,024 processors.
std::vector<int> mask_of(pid_t process) {
  std::vector<int> mask;
  for (int size = 1024; size <= 65'536 && mask.empty(); size *= 2) {
    const CpuSet set(CPU_ALLOC(static_cast<std::size_t>(size)));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(size));
    if (!set) break;
    CPU_ZERO_S(bytes, set.get());
    if (sched_getaffinity(process, bytes, set.get()) != 0 && errno != EINVAL) break;
    for (int cpu = 0; cpu < size; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set.get())) mask.push_back(cpu);
    }
  }
  return mask;
}

pid_t parent_of(pid_t process) {
  std::ifstream in(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("PPid:")) return static_cast<pid_t>(std::stol(line.substr(5)));
  }
  return 0;
}

// mpirun binds its ranks and not itself, so the mask of a parent process shows what the rank could
// use without the binding.
int unbound(const std::vector<int>& mask) {
  std::size_t most = mask.size();
  if (variable("OMPI_COMM_WORLD_RANK").empty()) return static_cast<int>(most);
  // Wrapper scripts may run between mpirun and the rank, so several ancestors are tried.
  constexpr int generations = 4;
  pid_t process = ::getppid();
  for (int i = 0; i < generations && process > 1; ++i, process = parent_of(process)) {
    most = std::max(most, mask_of(process).size());
  }
  return static_cast<int>(most);
}

std::optional<double> number_in(const fs::path& file) {
  double value = 0;
  if (std::ifstream(file) >> value) return value;
  return std::nullopt;
}

// The processors whose time one control group may use; 0: no limit.
double quota_of(const fs::path& group) {
  double most = 0, period = 0;
  // Control groups of version 2: "200000 100000" or "max 100000".
  if (std::ifstream in(group / "cpu.max"); in >> most >> period && period > 0) return most / period;
  const auto quota = number_in(group / "cpu.cfs_quota_us");  // version 1; -1: no limit
  const auto every = number_in(group / "cpu.cfs_period_us");
  return quota && every && *quota > 0 && *every > 0 ? *quota / *every : 0;
}

// Finds the smallest quota of this process's control group and its parents. A container may show
// the path of its group on the host, which it cannot see, and its own group at the root, so folders
// that do not exist are skipped.
void read_quota(const fs::path& root, Processors& found) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // the format is NUMBER:CONTROLLERS:/PATH
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_version_2 = line.starts_with("0:") && controllers.empty();
    if (!is_version_2 && ("," + controllers + ",").find(",cpu,") == controllers.npos) continue;
    const fs::path base = root / "sys/fs/cgroup" / (is_version_2 ? "" : "cpu");
    fs::path path = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
    for (bool is_top = false; !is_top; path = path.parent_path()) {
      is_top = path.empty() || path == ".";
      const fs::path group = is_top ? base : base / path;
      const double quota = quota_of(group);
      if (quota <= 0 || (found.quota > 0 && quota >= found.quota)) continue;
      struct stat info {};
      ::stat(group.c_str(), &info);
      found.quota = quota;
      found.group = fmt::format("{}/{}", info.st_dev, info.st_ino);
    }
  }
}

std::string threads_text(int threads) {
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

}  // namespace

std::string Processors::encode() const { return nlohmann::json{mask, quota, group}.dump(); }

Processors Processors::decode(const std::string& text) {
  const auto told = nlohmann::json::parse(text);
  return {.mask = told[0].get<std::vector<int>>(),
          .quota = told[1].get<double>(),
          .group = told[2].get<std::string>()};
}

Processors read_processors(const fs::path& root) {
  Processors found;
  found.online = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  found.mask = mask_of(0);
  if (found.mask.empty()) {  // the kernel did not report the mask
    found.mask.resize(static_cast<std::size_t>(found.online));
    std::iota(found.mask.begin(), found.mask.end(), 0);
  }
  found.unbound = unbound(found.mask);
  read_quota(root, found);
  return found;
}

int ProcessorShare::threads() const {
  constexpr double rounding = 1e-6;  // shares such as thirds may add up to slightly less than one
  const double most = quota > 0 ? std::min(cores, quota) : cores;
  return std::max(1, static_cast<int>(most + rounding));
}

ProcessorShare share_of(std::span<const Processors> ranks_of_host, std::size_t rank) {
  const Processors& own = ranks_of_host[rank];
  ProcessorShare share{0, own.quota};
  for (const int cpu : own.mask) {
    share.cores += 1.0 / static_cast<double>(
                             std::ranges::count_if(ranks_of_host, [&](const Processors& other) {
                               return std::ranges::binary_search(other.mask, cpu);
                             }));
  }
  if (own.quota > 0) {
    share.quota /=
        static_cast<double>(std::ranges::count_if(ranks_of_host, [&](const Processors& other) {
          return other.quota > 0 && other.group == own.group;
        }));
  }
  return share;
}

ComputeThreads choose_threads(std::span<const Processors> ranks_of_host, std::size_t rank,
                              int wanted) {
  const Processors& own = ranks_of_host[rank];
  const ProcessorShare share = share_of(ranks_of_host, rank);
  ComputeThreads chosen{wanted > 0 ? wanted : share.threads(), share.cores};
  const auto allowed = static_cast<int>(own.mask.size());
  const std::string cores = allowed < own.online
                                ? fmt::format("{} of {} cores", allowed, own.online)
                                : fmt::format("{} cores", allowed);
  const std::string limits = own.quota > 0 ? fmt::format("{}, {:.4g} CPU{} of quota", cores,
                                                         own.quota, own.quota == 1 ? "" : "s")
                                           : cores;
  const auto ranks = static_cast<int>(ranks_of_host.size());
  // The number of compute threads that the rank would have if mpirun had not bound it.
  const int fair =
      ProcessorShare{std::max(1.0, static_cast<double>(own.unbound) / ranks), share.quota}
          .threads();
  const bool is_bound = own.unbound > allowed;
  const bool too_many = chosen.threads > allowed || (own.quota > 0 && chosen.threads > own.quota);
  if (wanted > 0 && too_many && chosen.threads > share.threads()) {
    chosen.warning = fmt::format(
        "this rank computes with {} but has {}: {}set --threads {}", threads_text(chosen.threads),
        limits, is_bound ? "start mpirun with --bind-to none, or " : "", share.threads());
  } else if (wanted == 0 && is_bound && fair > chosen.threads) {
    chosen.warning = fmt::format(
        "mpirun has bound this rank to {} of {} cores, so it computes with {}: start mpirun with "
        "--bind-to none, which gives it {}",
        allowed, own.unbound, threads_text(chosen.threads), fair);
  }
  const bool is_limited = allowed < own.online || own.quota > 0;
  if (wanted == 0 && is_limited) {
    chosen.why =
        fmt::format("{}{}: {}{}", limits, ranks > 1 ? fmt::format(", {} ranks", ranks) : "",
                    threads_text(chosen.threads), ranks > 1 ? " per rank" : "");
  }
  return chosen;
}

}  // namespace train

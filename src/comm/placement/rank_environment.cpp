#include "comm/placement/rank_environment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/folder.hpp"
#include "core/parse.hpp"

namespace atoll_v1::atoll {
namespace {

namespace fs = std::filesystem;

// Converts a list such as "0-3,8" to {0, 1, 2, 3, 8}. Ignores everything from the first part that
// cannot be parsed.
std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr int most_cpus = 65'536;
  std::vector<int> cpus;
  for (const std::string_view part : split(text, ',')) {
    const auto ends = split(part, '-');
    const auto first = number_from<int>(ends.front()), last = number_from<int>(ends.back());
    if (ends.size() > 2 || !first || !last || *last < *first || *last >= most_cpus) break;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

using CpuSet = std::unique_ptr<cpu_set_t, decltype([](cpu_set_t* set) { CPU_FREE(set); })>;

// Returns the hardware threads to which this process is bound. Doubles the size of the mask until
// the kernel accepts it, because a machine may have more than 1,024 hardware threads.
std::vector<int> bound_cpus() {
  for (int size = 1024; size <= 65'536; size *= 2) {
    const CpuSet set(CPU_ALLOC(size));
    const std::size_t bytes = CPU_ALLOC_SIZE(size);
    if (!set) return {};
    CPU_ZERO_S(bytes, set.get());
    if (sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;
      return {};
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < size; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(cpu);
    return cpus;
  }
  return {};
}

// Returns the NUMA node that contains all `cpus`, or -1 when they span several nodes or no node is
// known.
int numa_of(const std::vector<int>& cpus, const fs::path& nodes) {
  int found = -1;
  std::error_code error;
  for (const std::string& name : names_in(nodes, error)) {
    int node = -1;
    if (!name.starts_with("node") ||
        std::from_chars(name.data() + 4, name.data() + name.size(), node).ec != std::errc())
      continue;
    const std::vector<int> list = parse_cpu_list(first_line(nodes / name / "cpulist"));
    const std::set<int> of_node(list.begin(), list.end());
    const auto inside = std::ranges::count_if(cpus, [&](int cpu) { return of_node.contains(cpu); });
    if (inside == 0) continue;
    if (inside != static_cast<std::ptrdiff_t>(cpus.size())) return -1;
    found = node;
  }
  return found;
}

// Returns the PCI bus ids of the GPUs that control groups allow this process to use; empty when no
// GPU is refused. When a control group hides a GPU, the GPU's device file cannot be opened. The
// driver's files in /proc map device files to GPUs.
std::vector<std::string> allowed_gpus(const EnvironmentRoots& roots) {
  std::vector<std::string> allowed;
  bool any_refused = false;
  std::error_code error;
  const fs::path gpus = fs::path(roots.proc) / "driver/nvidia/gpus";
  for (const std::string& name : names_in(gpus, error)) {
    std::ifstream file(gpus / name / "information");
    std::string line, minor;
    while (std::getline(file, line))
      if (line.starts_with("Device Minor:")) minor = line.substr(line.find_last_of(" \t") + 1);
    if (minor.empty()) continue;
    const std::string device = fmt::format("{}/nvidia{}", roots.dev, minor);
    const int descriptor = ::open(device.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) {
      any_refused = true;
      continue;
    }
    close(descriptor);
    allowed.push_back(name);
  }
  std::ranges::sort(allowed);
  return any_refused ? allowed : std::vector<std::string>();
}

// Returns true if a batch scheduler, which may assign GPUs, started this process. Device files are
// opened only in this case, because opening a file may wake up an idle GPU.
bool is_under_scheduler() {
  for (const char* name : {"SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID", "LSB_JOBID"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

// Returns the value of the first environment variable that limits the visible GPUs, or null when
// none is set.
const char* visible_devices() {
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"})
    if (const char* value = std::getenv(name); value != nullptr) return value;
  return nullptr;
}

}  // namespace

RankEnvironment look_around(const EnvironmentRoots& roots) {
  RankEnvironment environment;
  if (const char* value = visible_devices(); value != nullptr) {
    environment.has_visible = true;
    environment.visible = value;
  }
  if (is_under_scheduler()) environment.allowed_busids = allowed_gpus(roots);
  const fs::path cpu = fs::path(roots.sys) / "devices/system";
  std::vector<int> cpus = bound_cpus();
  environment.numa = numa_of(cpus, cpu / "node");
  const std::size_t online = parse_cpu_list(first_line(cpu / "cpu/online")).size();
  if (online == 0 || cpus.size() < online) environment.cpus = std::move(cpus);
  return environment;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankEnvironment, visible, has_visible, allowed_busids, cpus,
                                   numa)

std::string to_text(const RankEnvironment& environment) {
  const nlohmann::json text = environment;
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankEnvironment rank_environment_from(std::string_view text) {
  try {
    return nlohmann::json::parse(text).get<RankEnvironment>();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::bad_data, "cannot parse the environment that a rank sent");
  }
}

}  // namespace atoll_v1::atoll

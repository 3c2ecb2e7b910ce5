#include "report/utilization.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>

namespace train {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds shortest_sample{250};

double process_cpu_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The first line of proc/stat: user nice system idle iowait irq softirq steal, in clock ticks.
void read_cpus(const fs::path& file, MachineCounters& counters) {
  std::ifstream in(file);
  std::string word;
  if (!(in >> word) || word != "cpu") return;
  std::array<double, 8> ticks{};
  for (double& tick : ticks) in >> tick;
  if (!in) return;
  double total = 0;
  for (const double tick : ticks) total += tick;
  const auto rate = static_cast<double>(std::max(1L, ::sysconf(_SC_CLK_TCK)));
  counters.machine_total_s = total / rate;
  counters.machine_busy_s = (total - ticks[3] - ticks[4]) / rate;
}

void read_memory(const fs::path& file, MachineCounters& counters) {
  std::ifstream in(file);
  std::string name;
  for (double kib = 0; in >> name >> kib;
       in.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (name == "MemTotal:") counters.memory_total = kib * 1024;
    if (name == "MemAvailable:") counters.memory_available = kib * 1024;
  }
}

// Lines "  eth0: RECEIVED 7 other numbers SENT ...", after two lines of titles.
void read_interfaces(const fs::path& file, MachineCounters& counters) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t begin = line.find_first_not_of(' ');
    if (colon == std::string::npos || begin >= colon ||
        line.compare(begin, colon - begin, "lo") == 0)
      continue;
    std::istringstream numbers(line.substr(colon + 1));
    std::array<double, 9> values{};
    for (double& value : values) numbers >> value;
    if (!numbers) continue;
    counters.received += values[0];
    counters.sent += values[8];
  }
}

double number_in(const fs::path& file) {
  double value = 0;
  std::ifstream(file) >> value;
  return value;
}

// Network interfaces do not count RDMA traffic. RDMA ports count it in units of 4 bytes.
void read_rdma_ports(const fs::path& devices, MachineCounters& counters) {
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator(devices, ignored)) {
    std::error_code none;
    for (const auto& port : fs::directory_iterator(device.path() / "ports", none)) {
      counters.sent += 4 * number_in(port.path() / "counters" / "port_xmit_data");
      counters.received += 4 * number_in(port.path() / "counters" / "port_rcv_data");
    }
  }
}

}  // namespace

Utilization combined(std::span<const Utilization> ranks) {
  Utilization all;
  const auto count = static_cast<double>(std::max<std::size_t>(1, ranks.size()));
  for (const Utilization& rank : ranks) {
    all.cpu_machine += rank.cpu_machine / count;
    all.cpu_ranks += rank.cpu_ranks / count;
    all.memory_used_fraction = std::max(all.memory_used_fraction, rank.memory_used_fraction);
    all.network_sent_per_s = std::max(all.network_sent_per_s, rank.network_sent_per_s);
    all.network_received_per_s = std::max(all.network_received_per_s, rank.network_received_per_s);
    all.gpus += rank.gpus / count;
    all.gpu_busy += rank.gpus * rank.gpu_busy / count;
    all.nvlink_sent_per_s = std::max(all.nvlink_sent_per_s, rank.nvlink_sent_per_s);
    all.nvlink_received_per_s = std::max(all.nvlink_received_per_s, rank.nvlink_received_per_s);
    all.pcie_sent_per_s = std::max(all.pcie_sent_per_s, rank.pcie_sent_per_s);
    all.pcie_received_per_s = std::max(all.pcie_received_per_s, rank.pcie_received_per_s);
  }
  if (all.gpus > 0) all.gpu_busy /= all.gpus;
  return all;
}

MachineCounters read_machine_counters(const fs::path& root) {
  MachineCounters counters;
  counters.process_cpu_s = process_cpu_seconds();
  read_cpus(root / "proc" / "stat", counters);
  read_memory(root / "proc" / "meminfo", counters);
  read_interfaces(root / "proc" / "net" / "dev", counters);
  read_rdma_ports(root / "sys" / "class" / "infiniband", counters);
  return counters;
}

Utilization use_between(const MachineCounters& before, const MachineCounters& after, double seconds,
                        int ranks) {
  Utilization use;
  const double total = after.machine_total_s - before.machine_total_s;
  // The counters of a process are finer than those of the machine, and the other ranks may use less
  // than this one, so the ranks' share is limited to the machine's.
  const auto share = [&](double part) {
    return total > 0 ? std::clamp(part / total, 0.0, 1.0) : 0;
  };
  use.cpu_machine = share(after.machine_busy_s - before.machine_busy_s);
  use.cpu_ranks =
      std::min(use.cpu_machine, share(ranks * (after.process_cpu_s - before.process_cpu_s)));
  if (after.memory_total > 0) {
    use.memory_used_fraction = 1 - after.memory_available / after.memory_total;
  }
  if (!(seconds > 0)) return use;
  // A counter falls if its interface was removed or reset; the rate is then 0.
  use.network_sent_per_s = std::max(0.0, after.sent - before.sent) / seconds;
  use.network_received_per_s = std::max(0.0, after.received - before.received) / seconds;
  return use;
}

void add_gpu(Utilization& use, const std::optional<GpuReading>& before, const GpuReading& after,
             double seconds) {
  use.gpus = 1;
  use.gpu_busy = after.busy;
  if (!before || !(seconds > 0)) return;
  // A counter falls if it wraps around; the rate is then 0.
  const auto rate = [&](double earlier, double now) {
    return std::max(0.0, now - earlier) / seconds;
  };
  use.nvlink_sent_per_s = rate(before->nvlink_sent, after.nvlink_sent);
  use.nvlink_received_per_s = rate(before->nvlink_received, after.nvlink_received);
  use.pcie_sent_per_s = rate(before->pcie_sent, after.pcie_sent);
  use.pcie_received_per_s = rate(before->pcie_received, after.pcie_received);
}

MachineMeter::MachineMeter(int ranks_of_host, const std::string& gpu_pci_address)
    : ranks_(ranks_of_host),
      when_(Clock::now()),
      before_(read_machine_counters()),
      gpu_(gpu_pci_address),
      gpu_before_(gpu_.read()) {}

Utilization MachineMeter::sample() {
  const auto now = Clock::now();
  if (sampled_ && now - when_ < shortest_sample) return last_;
  const MachineCounters after = read_machine_counters();
  const double seconds = std::chrono::duration<double>(now - when_).count();
  last_ = use_between(before_, after, seconds, ranks_);
  if (const auto gpu = gpu_.read()) {
    add_gpu(last_, gpu_before_, *gpu, seconds);
    gpu_before_ = gpu;
  }
  before_ = after;
  when_ = now;
  sampled_ = true;
  return last_;
}

std::int64_t peak_resident_bytes() noexcept {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;  // Linux reports ru_maxrss in KiB
}

std::int64_t proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::int64_t kib = 0;
  for (std::string word; file >> word;) {
    if (word == "Pss:" && file >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace train

// How much of its machine a run uses: CPUs, memory and network by the counters of Linux, and GPUs;
// the memory of this process.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "report/gpu_use.hpp"

namespace train {

// The use of one rank's machine, or of all machines of a job. Exchanged between ranks as f64.
struct Utilization {
  double cpu_machine = 0;           // share of the machine's CPUs that any program used
  double cpu_ranks = 0;             // share of the machine's CPUs that the job's ranks used
  double memory_used_fraction = 0;  // share of the machine's memory that is not available
  double network_sent_per_s = 0;    // bytes on all interfaces but loopback, and on RDMA ports
  double network_received_per_s = 0;
  double gpus = 0;      // fraction of ranks whose GPU NVML can read; the figures below are theirs
  double gpu_busy = 0;  // share of time in which a kernel ran
  double nvlink_sent_per_s = 0;  // bytes over all links of a GPU
  double nvlink_received_per_s = 0;
  double pcie_sent_per_s = 0;  // bytes; 0 where the GPU does not count them
  double pcie_received_per_s = 0;
};

// Combines the figures of ranks: means for CPUs and GPUs, maxima for memory, network and links.
Utilization combined(std::span<const Utilization> ranks);

// CPU times and traffic are totals since process or machine started; memory is the current value.
struct MachineCounters {
  double process_cpu_s = 0;
  double machine_busy_s = 0;   // busy time, summed over CPUs
  double machine_total_s = 0;  // busy and idle time, summed over CPUs
  double memory_total = 0;     // bytes
  double memory_available = 0;
  double sent = 0;  // bytes on all interfaces but loopback, and on RDMA ports
  double received = 0;
};

// Reads proc/ and sys/ under `root`; the time of the process is always that of this process. What
// cannot be read stays 0.
MachineCounters read_machine_counters(const std::filesystem::path& root = "/");

// `ranks` is the number of ranks on the machine. Each is assumed to use as much CPU as this one.
Utilization use_between(const MachineCounters& before, const MachineCounters& after, double seconds,
                        int ranks);

// Adds a GPU's figures; without an earlier reading only gpu_busy, because rates need two readings.
void add_gpu(Utilization& use, const std::optional<GpuReading>& before, const GpuReading& after,
             double seconds);

// Samples this rank's machine.
class MachineMeter {
 public:
  explicit MachineMeter(int ranks_of_host, const std::string& gpu_pci_address = {});

  // The use since the last sample. Calls within a quarter of a second give the last sample again,
  // because reading the counters takes up to a millisecond on a large machine.
  Utilization sample();

 private:
  using Clock = std::chrono::steady_clock;
  int ranks_;
  Clock::time_point when_;
  MachineCounters before_;
  GpuProbe gpu_;
  std::optional<GpuReading> gpu_before_;
  Utilization last_;
  bool sampled_ = false;
};

// Peak resident memory of this process, in bytes.
std::int64_t peak_resident_bytes() noexcept;

// Current resident memory of this process in bytes, with shared pages divided among the processes
// that map them: a buffer that ranks share counts once in total. 0 if the kernel does not report
// it.
std::int64_t proportional_bytes();

}  // namespace train

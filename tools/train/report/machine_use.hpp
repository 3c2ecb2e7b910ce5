// How much of its machine a run uses: CPUs, memory and network, from the counters of Linux.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>

namespace train {

// The use of one rank's machine, or of all machines of a job. Exchanged between ranks as f64.
struct MachineUse {
  double cpu_machine = 0;           // share of the machine's CPUs that any program used
  double cpu_ranks = 0;             // share of the machine's CPUs that the job's ranks used
  double memory_used_fraction = 0;  // share of the machine's memory that is not available
  double network_sent_per_s = 0;    // bytes: all interfaces but loopback, and RDMA ports
  double network_received_per_s = 0;
};

// Combines the ranks: means of CPUs, the largest of memory and network.
MachineUse combined(std::span<const MachineUse> ranks);

// Counters since the machine or the process started, and the memory now.
struct MachineCounters {
  double process_cpu_s = 0;
  double machine_busy_s = 0;   // summed over CPUs
  double machine_total_s = 0;  // the same, with idle time
  double memory_total = 0;     // bytes
  double memory_available = 0;
  double sent = 0;  // bytes
  double received = 0;
};

// Reads proc/ and sys/ under `root`; the time of the process is always that of this process. What
// cannot be read stays 0.
MachineCounters read_machine_counters(const std::filesystem::path& root = "/");

// `ranks` is the number of ranks on the machine, which are assumed to use as much as this process.
MachineUse use_between(const MachineCounters& before, const MachineCounters& after, double seconds,
                       int ranks);

// Samples this rank's machine.
class MachineMeter {
 public:
  explicit MachineMeter(int ranks_of_host);

  // The use since the last sample. Calls within a quarter of a second give the last sample again,
  // because reading the counters takes up to a millisecond on a large machine.
  MachineUse sample();

 private:
  using Clock = std::chrono::steady_clock;
  int ranks_;
  Clock::time_point when_;
  MachineCounters before_;
  MachineUse last_;
  bool sampled_ = false;
};

}  // namespace train

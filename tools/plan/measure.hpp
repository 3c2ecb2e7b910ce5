// Measures the machine at hand for predictions: times of the operations of a model's passes, rates
// of the library's kernels, and the matrix peak of CPUs or of a GPU.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "plan/job.hpp"

namespace plan {

struct MeasureOptions {
  int ranks = 1;    // processes that measure at the same time, as the ranks of a job compute
  int threads = 1;  // compute threads of each process, on CPUs
  std::string device = "auto";  // "cpu" (or "host"), "cuda", or "auto": GPUs if there are any
  double seconds = 10;          // time for passes; the first pass does not count
  bool quiet = false;           // shows no progress
};

// Measures in this process, as the rank `rank` of `options.ranks`, and returns the text of the
// file.
std::string measure_here(const Job& job, const MeasureOptions& options, int rank);

// Runs `ranks` processes, and writes what the first measured to a file. Call it while this process
// has no other threads. Throws Error(io) for a file that cannot be written, and Error(backend) if a
// process fails.
void measure(const Job& job, const MeasureOptions& options, const std::filesystem::path& file);

// The measurements of one rank in a file that --measure wrote. The file has no figures of hosts or
// links.
struct MeasuredMachine {
  std::string gpu{};  // name of the GPU; empty for CPUs
  int ranks = 1;      // processes that measured at once
  std::uint64_t memory_bytes = 0, process_bytes = 0;
  double peak_f32 = 0, peak_bf16 = 0;  // FLOP/s of a rank
  double copy_gbyte_s = 0;
  train::simulated::OpTimes times{};
  std::map<std::string, double, std::less<>> kernel_gbyte_s{};
  std::string source{};
};

// Throws Error(io) and Error(bad_data).
MeasuredMachine read_machine(const std::filesystem::path& file);
// Makes the ranks of a cluster compute as the measured machine. For CPUs, it also replaces the
// links of the cluster, and its ranks per host by the number of ranks that measured. With GPUs, the
// cluster keeps its links and its number of ranks.
void use(const MeasuredMachine& machine, Cluster& cluster);

// Adds the times of a curve of atoll-busbw --save to the links. Throws Error(io) and
// Error(bad_data).
void add_curve(atoll::FabricModel& fabric, const std::filesystem::path& file);

}  // namespace plan

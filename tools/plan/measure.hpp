// Measures the machine at hand for predictions: times of the operations of a model's passes, rates
// of the library's kernels, and the matrix peak. CPUs only.
#pragma once

#include <filesystem>

#include "plan/job.hpp"

namespace plan {

struct MeasureOptions {
  int ranks = 1;        // processes that measure at the same time, as the ranks of a job compute
  int threads = 1;      // compute threads of each
  double seconds = 10;  // of passes; the first pass does not count
};

// Runs `ranks` processes, and writes what the first measured to a file. Call it while this process
// has no other threads. Throws Error(io) for a file that cannot be written, and Error(backend) if a
// process fails.
void measure(const Job& job, const MeasureOptions& options, const std::filesystem::path& file);

// Reads such a file. Hosts, ranks and links are not in it. Throws Error(io) and Error(bad_data).
Cluster read_machine(const std::filesystem::path& file);

// Adds the times of a curve of atoll-busbw --save to the links. Throws Error(io) and
// Error(bad_data).
void add_curve(atoll::FabricModel& fabric, const std::filesystem::path& file);

}  // namespace plan

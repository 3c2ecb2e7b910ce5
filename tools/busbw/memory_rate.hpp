// What the memory of a host gives: a streaming copy by all ranks at the same time.
#pragma once

#include <cstdint>
#include <map>

#include "job.hpp"

namespace busbw {

// Measures on first use and remembers. Every function is collective over the World.
class MemoryRate {
 public:
  explicit MemoryRate(Job& job) : job_(job) {}
  // GB/s that one rank reads and writes together, all ranks copying between two buffers of half
  // `footprint` bytes each: the better of cached and non-temporal stores; the mean over the ranks
  // of a host, the slowest host. Footprints are taken up to powers of 4, 16 KiB to 1 GiB.
  double gbyte_s(std::uint64_t footprint);

 private:
  double measure(std::uint64_t bytes);

  Job& job_;
  std::map<std::uint64_t, double> known_;  // by footprint
};

}  // namespace busbw

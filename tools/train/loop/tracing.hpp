// Collects the trace of the chosen steps (--trace) and writes all ranks into one file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/mesh.hpp"
#include "atoll/trace.hpp"
#include "loop/clock.hpp"
#include "loop/options.hpp"

namespace train {

class Tracing {
 public:
  explicit Tracing(StepRange steps) : steps_(steps) {}

  // Whether this step, counted from 1, is traced.
  bool covers(std::int64_t step) const noexcept {
    return steps_.first <= step && step <= steps_.last;
  }
  // Adds the records of one traced step, which this rank computed from `begin` to `end`.
  void add(std::int64_t step, atoll::TraceLog log, Clock::time_point begin, Clock::time_point end);
  // Writes the file on rank 0. Collective over all ranks of the job. `axis` lists them in the order
  // of the communicator, which is null if there is only one rank. System clocks align the ranks.
  // Throws Error(io).
  void write(const atoll::Axis& axis, atoll::Communicator* communicator,
             const std::filesystem::path& file) const;

 private:
  StepRange steps_;
  std::vector<atoll::TraceRecord> records_;
  std::uint64_t left_out_ = 0;
};

}  // namespace train

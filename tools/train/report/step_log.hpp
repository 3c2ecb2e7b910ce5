// Writes steps.jsonl: one line per step, flushed after each, so that an aborted run keeps its
// curve.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "report/metrics.hpp"

namespace train {

class StepLog {
 public:
  // `first_step` is the number of the next record. If it is above 1, the run is resumed: lines of
  // earlier steps are kept; later lines, and lines cut off by a crash, are removed. Throws
  // Error(io).
  StepLog(const std::filesystem::path& file, std::int64_t first_step);

  // Throws Error(io) with the file name if writing fails, for example on a full disk.
  void add(const StepRecord& step, const SpeedBase& base);

 private:
  std::filesystem::path file_;
  std::ofstream out_;
};

}  // namespace train

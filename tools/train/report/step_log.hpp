// steps.jsonl: one line per step, on the disk as soon as the step is done, so that a run that dies
// leaves its curve.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "report/metrics.hpp"

namespace train {

class StepLog {
 public:
  // `first_step` is the number of the next record. Above 1 the run is resumed: lines of earlier
  // steps are kept, later ones, which the resumed run will compute again, and lines that do not
  // parse (a step cut off by a crash) are removed. Throws Error(io).
  StepLog(const std::filesystem::path& file, std::int64_t first_step);

  // Throws Error(io), naming the file, when the line cannot be written (a full disk).
  void add(const StepRecord& step, const SpeedBase& base);

 private:
  std::filesystem::path file_;
  std::ofstream out_;
};

}  // namespace train

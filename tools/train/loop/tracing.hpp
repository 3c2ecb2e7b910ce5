// The trace of a run (--trace): what every rank has recorded of the chosen steps, in one file.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/trace.hpp"
#include "loop/options.hpp"

namespace train {

class Tracing {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Tracing(StepRange steps) : steps_(steps) {}

  // Whether the step, counted from 1, is to be recorded in full.
  bool covers(std::int64_t step) const noexcept {
    return steps_.first <= step && step <= steps_.last;
  }
  // What was recorded of a step that is covered, and from when to when this rank was at it.
  void add(std::int64_t step, atoll::TraceLog log, Clock::time_point begin, Clock::time_point end);
  // Collective over `ranks`, all ranks of the job, `root` of which writes the file. Ranks are set
  // against each other by their system clocks. Error(io).
  void write(atoll::World& world, atoll::Communicator* ranks, int root,
             const std::filesystem::path& file) const;

 private:
  StepRange steps_;
  std::vector<atoll::TraceRecord> records_;
  std::uint64_t left_out_ = 0;
};

}  // namespace train

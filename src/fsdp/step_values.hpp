// Compares the values that ranks pass to Optimizer::step().
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "world/rank_set.hpp"

namespace atoll_v1::atoll::fsdp {

struct StepValues {
  float learning_rate, gradient_scale;
};

// Different values would make replicas diverge without an error. An exchange in every step would
// cost too much, so the steps 1, 2, 4, ..., 1024 and then every 1024th step compare the values of
// all steps since the last comparison. With ATOLL_CHECK every step compares.
class StepComparison {
 public:
  // `ranks` must outlive this object.
  explicit StepComparison(const RankSet& ranks);

  // Calls `check`, which throws if this rank cannot make the step, and adds the values of the step.
  // In a step that compares, blocks until all ranks have called it. If `check` has thrown on a rank
  // then, every rank throws that error; if values differ, every rank throws Error(mismatch). After
  // an error the step does not count, so ranks that try again compare again.
  void add(const StepValues& values, const std::function<void()>& check);

 private:
  bool is_due(std::uint64_t step) const noexcept;

  const RankSet& ranks_;
  const bool every_step_;
  std::uint64_t steps_ = 0;        // number of steps so far
  std::vector<StepValues> since_;  // values of the steps after the last comparison
};

}  // namespace atoll_v1::atoll::fsdp

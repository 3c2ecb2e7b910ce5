// The peak rate of matrix products, the base of MFU.
#pragma once

#include <string>

#include "atoll/world.hpp"
#include "loop/known_peaks.hpp"
#include "loop/machine.hpp"

namespace train {

struct Peak {
  double flops = 0;     // FLOP/s of a rank: the published peak of its GPU if it is known
  double measured = 0;  // FLOP/s of a rank, the best of several samples on all ranks
  std::string source;   // datasheet or measured
};

// Measures for about `seconds`, and on CPUs up to twice again if the peak is far below what the
// same model of CPU gave to earlier runs. Rank 0 logs a peak that stays far below. Collective;
// `known` is used on rank 0.
Peak find_peak(atoll::World& world, const Machine& machine, atoll::DType dtype, double seconds,
               const KnownPeaks& known);

// Measures again, and once more if the new peak is far from the earlier one, because another process
// may have used the machine. Keeps the highest. Collective. Rank 0 logs a difference.
void check_peak(Peak& peak, atoll::World& world, const Machine& machine, atoll::DType dtype,
                double seconds);

// Whether two measurements of one machine differ by more than 25 %.
bool far_apart(double a, double b) noexcept;

}  // namespace train

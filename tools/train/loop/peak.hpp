// The peak rate of matrix products, the denominator of MFU.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "atoll/world.hpp"
#include "loop/rank_compute.hpp"

namespace train {

struct Peak {
  double flops = 0;     // FLOP/s of a rank: the published peak of its GPU, otherwise `measured`
  double measured = 0;  // FLOP/s of a rank, the best of several samples on all ranks
  std::string source;   // where `flops` comes from: datasheet or measured
};

// The peaks that runs on CPUs have measured, so that a run on a busy machine is noticed: a JSON
// file in the user's cache with the highest FLOP/s of a rank by the model of its CPU, its share of
// the machine and its dtype. An empty path keeps nothing. A file that cannot be read or written is
// ignored: a run does not depend on it.
class KnownPeaks {
 public:
  explicit KnownPeaks(std::filesystem::path file) : file_(std::move(file)) {}

  const std::filesystem::path& file() const noexcept { return file_; }
  double find(const std::string& key) const;  // FLOP/s; 0 if the file has no peak for the key
  void raise(const std::string& key, double flops) const;

 private:
  std::filesystem::path file_;
};

// The default file; empty if neither XDG_CACHE_HOME nor HOME is set.
std::filesystem::path usual_peak_file();

// Measures for about `seconds`, and on CPUs up to twice again if the peak is far below what the
// same model of CPU gave to earlier runs. Rank 0 logs a peak that stays far below. Collective;
// `known` is used on rank 0.
Peak find_peak(atoll::World& world, const Machine& machine, atoll::DType dtype, double seconds,
               const KnownPeaks& known);

// Measures again, and once more if the new peak is far from the earlier one, because another
// process may have used the machine. Keeps the highest. Collective. Rank 0 logs a difference.
void check_peak(Peak& peak, atoll::World& world, const Machine& machine, atoll::DType dtype,
                double seconds);

// Whether two measurements of one machine differ by more than 25 %.
bool far_apart(double a, double b) noexcept;

}  // namespace train

// The peaks of matrix products that runs on CPUs have measured, so that a run on a busy machine is
// noticed.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

namespace train {

// A JSON file in the user's cache: the highest FLOP/s of a rank by the model of its CPU, its share
// of the machine and its dtype. An empty path keeps nothing. A file that cannot be read or written
// is as good as none: a run does not depend on it.
class KnownPeaks {
 public:
  explicit KnownPeaks(std::filesystem::path file) : file_(std::move(file)) {}

  const std::filesystem::path& file() const noexcept { return file_; }
  double find(const std::string& key) const;  // 0 if there is none
  void raise(const std::string& key, double flops) const;

 private:
  std::filesystem::path file_;
};

// The usual file; empty if the user has no home.
std::filesystem::path usual_peak_file();

// The model of this machine's CPU with its family, model and stepping numbers, which tell models of
// one name apart; "" if /proc/cpuinfo does not say them.
std::string cpu_model();

}  // namespace train

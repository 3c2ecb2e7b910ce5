// Loads one of this folder's golden models into CPU memory: weights by unit, the batch and the
// expected results.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/device.hpp"
#include "checkpoint/safetensors.hpp"
#include "model/decoder.hpp"

namespace train::golden {

// Returns |actual - expected| / |expected| with the norms of vectors, or infinity if a value is not
// finite.
double relative_error(const std::vector<float>& actual, const std::vector<float>& expected);

struct Results {
  std::vector<float> logits;
  double loss = 0;  // mean over the labels that are not ignored
  // Gradients by the Hugging Face name of the parameter.
  std::map<std::string, std::vector<float>> gradients;
};

class GoldenModel {
 public:
  explicit GoldenModel(const std::filesystem::path& file);

  const ModelConfig& config() const noexcept { return config_; }
  std::int64_t rows() const noexcept { return rows_; }
  std::int64_t seq() const noexcept { return seq_; }
  const Results& expected() const noexcept { return expected_; }

  struct Options {
    atoll::DType compute = atoll::DType::f32;
    Recompute recompute = Recompute::none;
    std::int64_t head_rows = 512;
    // Number of passes. With 2 passes, each pass adds half of every gradient.
    int passes = 1;
  };
  // Runs the forward pass, computes logits and loss, and runs the backward pass.
  Results run(Ops& ops, const Options& options) const;

 private:
  class Run;
  ModelConfig config_;
  std::int64_t rows_ = 0;
  std::int64_t seq_ = 0;
  std::vector<std::int32_t> tokens_, labels_;
  std::map<std::string, std::vector<float>> weights_;  // weights by Hugging Face name
  Results expected_;
};

}  // namespace train::golden

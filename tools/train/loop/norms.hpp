// Norms of gradients and weights by unit, and the noise of the gradient (--log-norms).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/world.hpp"
#include "loop/engine_model.hpp"
#include "optimizers/arithmetic.hpp"
#include "report/metrics.hpp"

namespace train {

// The gradient noise scale of McCandlish et al., "An Empirical Model of Large-Batch Training"
// (arXiv 1812.06162, appendix A.1): with batches much smaller than this number of tokens, the noise
// of a step's gradient exceeds the gradient itself. It follows from the squared norms of the mean
// gradient over a small and over a large batch. Both estimates scatter, so each is averaged over
// steps before the division.
class NoiseScale {
 public:
  struct Sample {
    double tokens = 0;   // in the batch
    double squares = 0;  // of the mean gradient over the batch
  };
  // Does nothing unless 0 < small.tokens < large.tokens.
  void add(const Sample& small, const Sample& large);
  // In tokens; empty before the first sample, and while the averages are not positive.
  std::optional<double> tokens() const;

 private:
  double signal_ = 0, noise_ = 0;
  std::int64_t samples_ = 0;
};

class NormLog {
 public:
  // `every` is --log-norms. The engine must outlive this object.
  NormLog(atoll::World& world, atoll::fsdp::Engine& engine,
          std::shared_ptr<muon::Arithmetic> arithmetic, std::int64_t every);

  // `step` counts from 1.
  bool due(std::int64_t step) const { return step % every_ == 0; }
  // For the last micro batch of a due step: measures the gradients of this rank before they are
  // reduced. `before` and `last` are the tokens with a label in the rank's earlier micro batches
  // and in the last one.
  ObserveGradients observer(atoll::Stream& compute, std::int64_t before, std::int64_t last);
  // Fills in `norms` and `gradient_noise_tokens` of a due step. `compute` has completed the step.
  // Collective. Blocks.
  void complete(StepRecord& record, atoll::Stream& compute);

 private:
  struct Squares;
  std::size_t index_of(const atoll::fsdp::Unit& unit) const;
  muon::Figures* figures(int kind, std::size_t unit) const;

  atoll::World& world_;
  atoll::fsdp::Engine& engine_;
  std::shared_ptr<muon::Arithmetic> arithmetic_;
  std::int64_t every_;
  std::vector<const atoll::fsdp::Unit*> units_;
  atoll::Buffer memory_;      // Figures of each unit: local gradients, gradients, weights
  bool accumulated_ = false;  // the observed gradients are sums over the rank's micro batches
  std::int64_t before_ = 0, last_ = 0;
  NoiseScale noise_;
};

}  // namespace train

// Norms of gradients and weights by unit (--log-norms).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/world.hpp"
#include "optimizers/arithmetic.hpp"
#include "report/metrics.hpp"

namespace train {

class NormLog {
 public:
  // `every` is --log-norms. The engine must outlive this object.
  NormLog(atoll::World& world, atoll::fsdp::Engine& engine,
          std::shared_ptr<muon::Arithmetic> arithmetic, std::int64_t every);

  // `step` counts from 1.
  bool due(std::int64_t step) const { return step % every_ == 0; }
  // Fills in `norms` of a due step. `compute` has completed the step. Collective. Blocks.
  void complete(StepRecord& record, atoll::Stream& compute);

 private:
  atoll::World& world_;
  atoll::fsdp::Engine& engine_;
  std::shared_ptr<muon::Arithmetic> arithmetic_;
  std::int64_t every_;
  atoll::Buffer memory_;  // two Figures per unit, of its gradients and of its weights
};

}  // namespace train

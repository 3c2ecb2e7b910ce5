// Optimizers over the shards of an Engine, with clipping by the global norm.
#pragma once

#include <memory>

#include "atoll/fsdp.hpp"

namespace atoll_v1::atoll::fsdp {

struct OptimizerOptions {
  enum class Kind {
    adamw,
    sgd
  } kind = Kind::adamw;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;  // decoupled; on every parameter
  float max_norm = 1.0f;      // gradients are scaled down to this global norm; 0: no clipping
};

// The moments are sharded as the parameters are: a rank holds and updates its own part only. The
// norm is the same on every rank and for every mesh that gives the same gradients: f64 sums over
// blocks of 4,096 elements, combined in the order of the blocks. A step whose norm is not finite
// changes nothing; neither does one after a failure of the job.
class Optimizer {
 public:
  // Error(invalid_argument) before Engine::freeze().
  Optimizer(Engine& engine, OptimizerOptions options = {});
  Optimizer(Optimizer&&) noexcept;
  ~Optimizer();

  // Enqueued on `compute`, behind the gradients. Collective over the shard axis.
  void step(float learning_rate, Stream& compute);
  // Of the last step, before clipping. Blocks until that step is complete.
  float grad_norm();
  // Steps that changed something: those with a finite norm. Blocks as grad_norm() does. Resumed
  // runs set it.
  std::int64_t steps() const;
  void set_steps(std::int64_t steps);
  const OptimizerOptions& options() const noexcept;
  // f32 shards beside Unit::State's master shard: for checkpoints. Empty for sgd.
  struct Moments {
    View first, second;
  };
  Moments moments(const Unit& unit) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll::fsdp
